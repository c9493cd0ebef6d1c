"""Prefix beam search for CTC: the most probable texts, each summed over its paths.

B batch, T frames, V vocabulary, D width, K prefixes of an utterance, C tokens that each may grow by.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, Unpack

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from asr.decoding.ctc_prefixes import Prefixes
from asr.decoding.hypothesis import Hypothesis, ranked
from asr.decoding.scorers.fusion import FusionOptions, ShallowFusion
from asr.decoding.scorers.scorer import select
from asr.models import devices
from asr.models.heads.protocols import FrameScores
from asr.text.vocabulary import BLANK_ID

SkipThreshold = Annotated[float, Field(ge=0.5, le=1)]


class BeamOptions(FusionOptions, total=False):
    """Options of ``CtcBeam``."""

    beam_size: PositiveInt
    beam_size_token: PositiveInt
    blank_skip_threshold: SkipThreshold


class CtcBeam(ShallowFusion):
    """Keeps the best prefixes after each frame; a language model and hotwords add to them with every token.

    Reference:
        Hannun et al. 2014, "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent
        DNNs", arXiv:1408.2873, algorithm 1.
        Differs: what is added comes with tokens, not with words; only the best tokens of a frame are tried.
    """

    needs = FrameScores

    def __init__(
        self,
        beam_size: PositiveInt = 8,
        beam_size_token: PositiveInt = 8,
        blank_skip_threshold: SkipThreshold = 0.999,
        **fusion: Unpack[FusionOptions],
    ) -> None:
        """Set the options.

        Args:
            beam_size: prefixes that are kept after each frame, K; as many hypotheses are returned.
            beam_size_token: the most probable tokens of a frame, C, that a prefix may grow by.
            blank_skip_threshold: frames whose blank is more probable are taken for blanks, in no time; 1 skips none.
            fusion: see ``ShallowFusion``.
        """
        super().__init__(**fusion)
        self.beam_size, self.beam_size_token = beam_size, beam_size_token
        self.blank_skip_threshold = blank_skip_threshold

    def __call__(self, head: FrameScores, encodings: Tensor, num_frames: Tensor) -> list[list[Hypothesis]]:
        """Return the best texts of each utterance; see ``Decoder``.

        A token stands in the frame that most probably ends its prefix, summed over paths.

        Args:
            head: scores frames.
            encodings: (B, T, D).
            num_frames: (B,) valid frames.
        """
        frames = _searched(head.frame_log_probs(encodings), num_frames, math.log(self.blank_skip_threshold))
        num_tokens = min(self.beam_size_token, frames.log_probs.shape[2] - 1)
        # the first column is the blank's
        best, tokens = frames.log_probs[..., 1:].topk(num_tokens, dim=2)
        tokens += 1
        prefixes = Prefixes.empty(len(tokens), self.beam_size, tokens.device)
        state = select(self.scorer.start(len(tokens), tokens.device), torch.zeros_like(prefixes.last))
        emissions = []
        for t in range(tokens.shape[1]):
            prefixes = prefixes.after_blanks(frames.after_blanks[:, t])
            stayed, grown = prefixes.extended(frames.log_probs[:, t], best[:, t], tokens[:, t])
            bonus = self.scorer.score(state, tokens[:, t].unsqueeze(1).expand_as(grown))
            added = prefixes.added.unsqueeze(2) + bonus
            prefixes, slots, appended = prefixes.chosen(stayed, grown, added, tokens[:, t], t)
            state = self.scorer.advance(select(state, slots), appended)
            emissions.append(torch.stack((prefixes.last, prefixes.parent_record)))
        scores = prefixes.log_probs() + prefixes.added + self.scorer.end(state) + frames.skipped.unsqueeze(1)
        return _hypotheses(scores, prefixes.record, emissions, frames)


class _Frames(NamedTuple):
    """The frames that are searched, T' of T.

    Attributes:
        log_probs: (B, T', V) float64; padding is certainly blank.
        after_blanks: (B, T') bool, whether frames were skipped just before.
        skipped: (B,) log-probability of all blanks that were skipped.
        numbers: (B, T') int64, of the frames among all.
    """

    log_probs: Tensor
    after_blanks: Tensor
    skipped: Tensor
    numbers: Tensor


def _searched(log_probs: Tensor, num_frames: Tensor, threshold: float) -> _Frames:
    """Return the valid frames whose blank has a log-probability of at most the threshold."""
    valid = torch.arange(log_probs.shape[1], device=log_probs.device) < num_frames.unsqueeze(1)
    blanks = log_probs[..., BLANK_ID]
    skipped = valid & (blanks > threshold)
    kept = valid & ~skipped
    num_kept = kept.sum(dim=1)
    # stable: the frames that are kept stay in the order of time
    index = kept.int().argsort(dim=1, descending=True, stable=True)[:, : devices.to_host(num_kept.max())]
    # in 64 bits: after a thousand frames 32 give different prefixes the same score, and the order of topk decides
    searched = log_probs.gather(1, index.unsqueeze(2).expand(-1, -1, log_probs.shape[2])).double()
    padding = torch.arange(index.shape[1], device=index.device) >= num_kept.unsqueeze(1)
    # shorter utterances go on with certain blanks: they change neither prefixes nor scores
    searched.masked_fill_(padding.unsqueeze(2), -math.inf)[..., BLANK_ID].masked_fill_(padding, 0.0)
    after_blanks = skipped.roll(1, dims=1).gather(1, index)  # before the first frame it changes nothing
    return _Frames(searched, after_blanks, blanks.double().where(skipped, 0.0).sum(dim=1), index)


def _hypotheses(scores: Tensor, records: Tensor, emissions: list[Tensor], frames: _Frames) -> list[list[Hypothesis]]:
    """Return the texts with a score above -inf, at least one of an utterance, best first.

    Args:
        scores: (B, K) of the prefixes.
        records: (B, K) of their last tokens.
        emissions: of each step the last tokens (B, K), and the records before these.
    """
    last, before = devices.to_host(torch.stack(emissions, dim=1)) if emissions else ([], [])
    numbers, beam_size = devices.to_host(frames.numbers), scores.shape[1]
    beams = []
    for row, (row_scores, row_records) in enumerate(
        zip(devices.to_host(scores), devices.to_host(records), strict=True)
    ):
        hypotheses = []
        for score, record in zip(row_scores, row_records, strict=True):
            steps, tokens = [], []
            while record >= 0:
                step, slot = divmod(record, beam_size)
                steps.append(step)
                tokens.append(last[step][row][slot])
                record = before[step][row][slot]
            steps.reverse()
            tokens.reverse()
            log_probs = devices.to_host(frames.log_probs[row, steps, tokens])
            hypotheses.append(Hypothesis(tokens, [numbers[row][step] for step in steps], log_probs, score))
        hypotheses = ranked(hypotheses)
        beams.append([hypothesis for hypothesis in hypotheses if hypothesis.score > -math.inf] or hypotheses[:1])
    return beams
