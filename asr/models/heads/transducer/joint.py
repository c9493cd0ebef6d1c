"""Scores of a joiner at many pairs of frame and place, in the memory of a few.

B batch, T frames, S places, R places per frame, J width of the joiner, V vocabulary (blank is 0).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from asr.models import devices
from asr.text.vocabulary import BLANK_ID

MOST_LOGITS = 1 << 18  # that are computed at a time: those of a few frames, which stay in the cache of a CPU
MOST_KEPT = 5 << 20  # for the backward pass, 20 MB; if there are more, memory is short, and all are computed again


class JointScores(Function):
    """log P(blank) and log P(label) of softmax(tanh(frame + place) · Wᵀ + b), without all (B, T, R, V) logits.

    The backward pass computes the logits of some frames again, unless all are so few that they are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, frames: Tensor, places: Tensor, weight: Tensor, bias: Tensor, kept: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return both log-probabilities (B, T, R).

        Args:
            frames: (B, T, J) projected encodings.
            places: (B, S, J) projected predictions.
            weight: W (V, J).
            bias: b (V,).
            kept: (B, T, R) int64, of the S places.
            labels: (B, T, R) int64 token after each of them.
        """
        blank, label, norm = (frames.new_empty(kept.shape) for _ in range(3))
        ctx.logits = {}  # by the first frame
        is_kept = kept.numel() * len(bias) <= MOST_KEPT
        for part in _parts(kept, len(bias)):
            logits = F.linear(_hidden(frames, places, kept, part), weight, bias)
            norm[:, part] = logits.logsumexp(-1)
            blank[:, part] = logits[..., BLANK_ID] - norm[:, part]
            label[:, part] = logits.gather(3, labels[:, part, :, None]).squeeze(3) - norm[:, part]
            if is_kept:
                ctx.logits[part.start] = logits
        ctx.save_for_backward(frames, places, weight, bias, kept, labels, norm)
        return blank, label

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_blank: Tensor, of_label: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of frames, places, weight and bias from those (B, T, R) of blanks and labels."""
        frames, places, weight, bias, kept, labels, norm = ctx.saved_tensors
        of_frames, of_places = torch.empty_like(frames), torch.zeros_like(places)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        row = torch.arange(len(frames), device=frames.device)[:, None, None]
        for part in _parts(kept, len(bias)):
            hidden = _hidden(frames, places, kept, part)
            logits = ctx.logits.pop(part.start, None)  # a second backward pass finds none
            logits = F.linear(hidden, weight, bias) if logits is None else logits
            both = of_blank[:, part] + of_label[:, part]
            # of log softmax: what is asked for minus the probabilities
            of_logits = logits.sub_(norm[:, part, :, None]).exp_().mul_(-both[..., None])
            of_logits[..., BLANK_ID] += of_blank[:, part]
            of_logits.scatter_add_(3, labels[:, part, :, None], of_label[:, part, :, None])
            flat = of_logits.flatten(0, 2)
            of_bias += flat.sum(0)
            of_weight.addmm_(flat.mT, hidden.flatten(0, 2))
            of_hidden = (of_logits @ weight).mul_(hidden.square_().neg_().add_(1))
            of_frames[:, part] = of_hidden.sum(2)
            of_places.index_put_((row.expand_as(kept[:, part]), kept[:, part]), of_hidden, accumulate=True)
        return of_frames, of_places, of_weight, of_bias, None, None


def _parts(kept: Tensor, vocab_size: int) -> Iterator[slice]:
    """Yield slices of frames that cover all of them."""
    size, num_frames, num_kept = kept.shape
    step = max(1, MOST_LOGITS // (size * num_kept * vocab_size))
    return (slice(start, start + step) for start in range(0, num_frames, step))


def _hidden(frames: Tensor, places: Tensor, kept: Tensor, part: slice) -> Tensor:
    """Return tanh(frame + place) (B, frames of the part, R, J)."""
    row = torch.arange(len(frames), device=frames.device)[:, None, None]
    sums = places[row, kept[:, part]] + frames[:, part, None]
    if devices.on_accelerator(sums):
        return sums.tanh_()
    # a quarter of the time that tanh takes on a CPU (torch 2.13, AVX-512), and within 2e-7 of it
    return sums.mul_(2).sigmoid_().mul_(2).sub_(1)
