"""Beam search for transducers: the most probable texts, with at most one token in a frame.

B batch, T frames, D width, K hypotheses of an utterance, C tokens that each may grow by, J width of the joiner.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Unpack

import torch
from pydantic import PositiveInt
from torch import Tensor

from asr.decoding.ctc_beam import hashed
from asr.decoding.greedy import Hypothesis, ranked
from asr.decoding.scorers import FusionOptions, Scorer, ShallowFusion, select
from asr.models import devices
from asr.models.heads.protocols import Transduces
from asr.text.tokenizer import BLANK_ID

NEVER = -math.inf


class TransducerBeam(ShallowFusion):
    """Keeps the best texts after each frame, each summed over its alignments.

    A language model and hotwords add to them with every token.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", arXiv:1211.3711, section 2.6.
        Differs: a frame has at most one token, as in icefall's ``modified_beam_search``, so that all hypotheses of a
        batch grow together; only the best tokens after each are tried.
    """

    needs = Transduces

    def __init__(
        self, beam_size: PositiveInt = 4, beam_size_token: PositiveInt = 8, **fusion: Unpack[FusionOptions]
    ) -> None:
        """Set the options.

        Args:
            beam_size: texts that are kept after each frame, K; as many hypotheses are returned.
            beam_size_token: the most probable tokens, C, that a text may grow by in a frame.
            fusion: see ``ShallowFusion``.
        """
        super().__init__(**fusion)
        self.beam_size, self.beam_size_token = beam_size, beam_size_token

    def __call__(self, head: Transduces, encodings: Tensor, num_frames: Tensor) -> list[list[Hypothesis]]:
        """Return the best texts of each utterance; see ``Decoder``. A token stands in the frame that most of the
        probability of its text comes through.

        Args:
            head: predicts tokens.
            encodings: (B, T, D).
            num_frames: (B,) valid frames.
        """
        frames, size = head.project(encodings), len(encodings)
        beam = _Beam.start(head, self.scorer, size, self.beam_size, encodings.device)
        steps = []
        for t in range(devices.to_host(num_frames.max())):
            log_probs = head.join(frames[:, t].unsqueeze(1), beam.predictions).double()
            num_tokens = min(self.beam_size_token, log_probs.shape[2] - 1)
            # the first column is the blank's
            best, tokens = log_probs[..., 1:].topk(num_tokens, dim=2)
            tokens += 1
            # an utterance that has ended takes blanks at no cost, so that the others can go on
            is_over = (t >= num_frames).unsqueeze(1)
            stayed = beam.log_probs + log_probs[..., BLANK_ID].masked_fill(is_over, 0.0)
            grown = (beam.log_probs.unsqueeze(2) + best).masked_fill(is_over.unsqueeze(2), NEVER)
            merged = _merged(beam.hashes, stayed, grown, tokens)
            added = beam.added.unsqueeze(2) + self.scorer.score(beam.state, tokens)
            beam, step = beam.after(merged, added, tokens, best, head, self.scorer)
            steps.append(step)
        scores = beam.log_probs + beam.added + self.scorer.end(beam.state)
        return _hypotheses(scores, steps)


class _Merged(NamedTuple):
    """Log-probabilities after a frame, those of equal texts added.

    Attributes:
        stayed: (B, K) of the texts as they were.
        grown: (B, K, C) of those one token longer; -inf where one of the others is the same text.
        source: (B, K) int64, where the best alignment of a text that stayed comes from: below K a text that emitted
            a blank, from K on number K + k · C + c of those that have grown.
    """

    stayed: Tensor
    grown: Tensor
    source: Tensor


def _merged(hashes: Tensor, stayed: Tensor, grown: Tensor, tokens: Tensor) -> _Merged:
    """Add a text that has grown to the same text that stayed; all texts before the frame differ."""
    beam_size, flat = hashes.shape[1], grown.flatten(1)
    same = hashed(hashes.unsqueeze(2), tokens).flatten(1).unsqueeze(2) == hashes.unsqueeze(1)  # (B, K · C, K)
    # an empty slot has a log-probability of -inf, and equals no text
    same &= ((flat > NEVER).unsqueeze(2)) & (stayed > NEVER).unsqueeze(1)
    other = flat.unsqueeze(2).masked_fill(~same, NEVER)
    best, column = other.max(dim=1)
    source = torch.where(best > stayed, beam_size + column, torch.arange(beam_size, device=hashes.device))
    unmerged = flat.masked_fill(same.any(dim=2), NEVER).view_as(grown)
    return _Merged(torch.logaddexp(stayed, best), unmerged, source)


class _Step(NamedTuple):
    """Where the texts after a frame come from.

    Attributes:
        slots: (B, K) int64 of the texts before.
        appended: (B, K) int64 token that was emitted; blank if none was.
        log_probs: (B, K) of that token.
    """

    slots: Tensor
    appended: Tensor
    log_probs: Tensor


class _Beam(NamedTuple):
    """Texts, all different; those of log-probability -inf stand for none.

    Attributes:
        log_probs: (B, K) float64, summed over alignments.
        added: (B, K) float64, what scorers have added.
        context: (B, K, tokens of context) int64.
        predictions: (B, K, J).
        hashes: (B, K) int64, of the tokens.
    """

    log_probs: Tensor
    added: Tensor
    context: Tensor
    predictions: Tensor
    hashes: Tensor
    state: Any

    @classmethod
    def start(cls, head: Transduces, scorer: Scorer, size: int, beam_size: int, device: torch.device) -> _Beam:
        """Return the empty text in the first slot, and none in the others."""
        log_probs = torch.full((size, beam_size), NEVER, dtype=torch.float64, device=device)
        log_probs[:, 0] = 0.0
        context = torch.full((size, beam_size, head.context_size), -1, device=device)
        context[..., -1] = BLANK_ID
        # a copy: rows of an expanded tensor share memory, and each row is written to later
        predictions = head.predict(context[:1, 0]).expand(size, beam_size, -1).clone()
        hashes = torch.zeros_like(context[..., 0])
        state = select(scorer.start(size, device), hashes)
        return cls(log_probs, torch.zeros_like(log_probs), context, predictions, hashes, state)

    def after(
        self, merged: _Merged, added: Tensor, tokens: Tensor, best: Tensor, head: Transduces, scorer: Scorer
    ) -> tuple[_Beam, _Step]:
        """Return the best texts after a frame, and where they come from.

        Args:
            merged: log-probabilities after the frame.
            added: (B, K, C) by scorers, to the texts that have grown.
            tokens: (B, K, C) that these have grown by.
            best: (B, K, C) log-probabilities of these tokens.
        """
        beam_size, num_tokens = tokens.shape[1:]
        log_probs = torch.cat((merged.stayed, merged.grown.flatten(1)), dim=1)
        sums = torch.cat((self.added, added.flatten(1)), dim=1)
        index = (log_probs + sums).topk(beam_size, dim=1).indices
        source = torch.where(index < beam_size, merged.source.gather(1, index.clamp(max=beam_size - 1)), index)
        column = (source - beam_size).clamp(min=0)
        is_longer = source >= beam_size
        slots = torch.where(is_longer, column // num_tokens, source)
        appended = tokens.flatten(1).gather(1, column).masked_fill(~is_longer, BLANK_ID)
        context, predictions = select((self.context, self.predictions), slots)
        # only these have a new context
        rows = is_longer.nonzero(as_tuple=True)
        if len(rows[0]):
            context[rows] = torch.cat((context[rows][:, 1:], appended[rows].unsqueeze(1)), dim=1)
            predictions[rows] = head.predict(context[rows])
        hashes = self.hashes.gather(1, slots)
        beam = _Beam(
            log_probs.gather(1, index),
            sums.gather(1, index),
            context,
            predictions,
            torch.where(is_longer, hashed(hashes, appended), hashes),
            scorer.advance(select(self.state, slots), appended),
        )
        return beam, _Step(slots, appended, best.flatten(1).gather(1, column))


def _hypotheses(scores: Tensor, steps: list[_Step]) -> list[list[Hypothesis]]:
    """Return the texts with a score above -inf, best first; the empty text if there was no frame."""
    all_slots, all_tokens, all_log_probs = (
        (devices.to_host(torch.stack(field, dim=2)) for field in zip(*steps, strict=True)) if steps else ([], [], [])
    )
    beams = []
    for row, row_scores in enumerate(devices.to_host(scores)):
        hypotheses = []
        for slot, score in enumerate(row_scores):
            if score == NEVER:
                continue
            emitted: list[tuple[int, int, float]] = []
            for t in reversed(range(len(steps))):
                if token := all_tokens[row][slot][t]:
                    emitted.insert(0, (token, t, all_log_probs[row][slot][t]))
                slot = all_slots[row][slot][t]
            tokens, frames, log_probs = map(list, zip(*emitted, strict=True)) if emitted else ([], [], [])
            hypotheses.append(Hypothesis(tokens, frames, log_probs, score))
        beams.append(ranked(hypotheses))
    return beams
