"""Where a transducer's paths probably run, found by a joiner that is a sum.

B batch, T frames, U tokens, S = U + 1 places, V vocabulary (blank is 0), R places that are kept in each frame.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.models.heads.transducer.lattice import NEVER, PathLosses
from asr.text.vocabulary import BLANK_ID


def simple_scores(acoustic: Tensor, language: Tensor, labels: Tensor, lm_scale: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (B, T, S) of blanks and labels if the joiner only adds; no (B, T, S, V) exists.

    Args:
        acoustic: (B, T, V) logits of the frames.
        language: (B, S, V) logits of the places.
        labels: (B, S) int64 token after each place; the last one may be any.
        lm_scale: share in [0, 1) of the log-probabilities of ``language`` alone.

    Reference:
        Kuang et al. 2022, "Pruned RNN-T for fast, memory-efficient ASR training", arXiv:2206.13236, and k2's
        ``rnnt_loss_smoothed``. Differs: there is no share of ``acoustic`` alone, which icefall sets to 0.
    """
    most_acoustic, most_language = (logits.detach().amax(-1, keepdim=True) for logits in (acoustic, language))
    sums = (acoustic - most_acoustic).exp() @ (language - most_language).exp().mT
    # a sum of 0 would need logits that are 87 apart in all tokens
    norm = sums.clamp(min=torch.finfo(sums.dtype).tiny).log() + most_acoustic + most_language.mT
    of_labels = language.gather(2, labels[..., None]).mT
    label = acoustic.gather(2, labels[:, None].expand(-1, acoustic.shape[1], -1)) + of_labels - norm
    blank = acoustic[..., BLANK_ID, None] + language[:, None, :, BLANK_ID] - norm
    alone = language.logsumexp(-1)
    blank = torch.lerp(blank, (language[..., BLANK_ID] - alone)[:, None].expand_as(blank), lm_scale)
    label = torch.lerp(label, (of_labels - alone[:, None]).expand_as(label), lm_scale)
    return blank, label


def band_starts(passing: Tensor, num_frames: Tensor, num_tokens: Tensor, num_kept: int) -> Tensor:
    """Return the first (B, T) of the R places that are kept in each frame: those that paths pass most probably.

    It starts at 0, ends at the last R places, never falls, and rises by at most R - 1 from frame to frame, so that a
    path may always continue.

    Args:
        passing: (B, T, S) probability that a path passes.
        num_frames: (B,) int64.
        num_tokens: (B,) int64, at most (R - 1) · T.
        num_kept: R, at most S.
    """
    sums = F.pad(passing.cumsum(-1), (1, 0))
    starts = (sums[..., num_kept:] - sums[..., :-num_kept]).argmax(-1)
    frame = torch.arange(passing.shape[1], device=passing.device)
    highest, last = (num_kept - 1) * frame, (num_tokens + 1 - num_kept).clamp(min=0)[:, None]
    # a band that starts later than this cannot be reached from place 0, or lies after the last place
    starts = torch.minimum(torch.minimum(starts, highest), last)
    starts = torch.where(frame >= num_frames[:, None] - 1, last, starts)
    # at most every later start, so that the band never falls; then not below what it can rise by until a later one
    starts = starts.flip(1).cummin(1).values.flip(1)
    return (starts - highest).flip(1).cummax(1).values.flip(1) + highest


def band_losses(
    blank: Tensor, label: Tensor, kept: Tensor, num_places: int, num_frames: Tensor, num_tokens: Tensor
) -> Tensor:
    """Return losses (B,) of the paths within a band.

    Args:
        blank: (B, T, R) log-probabilities of the places that are kept.
        label: (B, T, R).
        kept: (B, T, R) int64, these places.
        num_places: S.
        num_frames: (B,) int64.
        num_tokens: (B,) int64.
    """
    # no label leads out of the band, and blanks outside of it lead to no label
    label = F.pad(label[..., :-1], (0, 1), value=NEVER)
    blanks = blank.new_zeros(*blank.shape[:2], num_places).scatter(2, kept, blank)
    labels = label.new_full((*label.shape[:2], num_places), NEVER).scatter(2, kept, label)
    return PathLosses.apply(blanks, labels, num_frames, num_tokens)[0]
