"""Hypotheses, and greedy searches for them with CTC and transducer heads, whole and in streams.

B batch, T frames, D width, W frames that are joined at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from asr.models import devices
from asr.models.heads.protocols import FrameScores, Transduces
from asr.text.tokenizer import BLANK_ID

NUM_AHEAD = 5  # W: speech has a token every few frames, and what is joined after it is joined again


@dataclass(frozen=True)
class Hypothesis:
    """One possible transcript of an utterance.

    Attributes:
        tokens: without blanks.
        frames: of the encodings, counted from 0, in which each token was emitted; they never fall.
        log_probs: of each token, in its frame.
        score: by which hypotheses of one utterance are ranked: a log-probability, with whatever a decoder adds to it.
    """

    tokens: list[int]
    frames: list[int]
    log_probs: list[float]
    score: float


def ranked(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Return hypotheses of one utterance, best first; equal scores in the order of their tokens."""
    return sorted(hypotheses, key=lambda hypothesis: (-hypothesis.score, hypothesis.tokens))


class Decoder(Protocol):
    """A search for the most probable transcripts."""

    @property
    def needs(self) -> Any:
        """Protocol of the heads that it can search with, one of ``asr.models.heads.protocols``."""

    def __call__(self, head: Any, encodings: Tensor, num_frames: Tensor) -> list[list[Hypothesis]]:
        """Return hypotheses of each utterance, at least one, best first.

        Args:
            head: has the protocol that is needed.
            encodings: (B, T, D).
            num_frames: (B,) int64 valid frames.
        """


class CtcGreedy:
    """Takes the most probable label of every frame, merges repetitions, removes blanks.

    Reference:
        Graves et al. 2006, "Connectionist Temporal Classification", section 3.2, best path decoding.
    """

    needs = FrameScores

    def __call__(self, head: FrameScores, encodings: Tensor, num_frames: Tensor) -> list[list[Hypothesis]]:
        """Return the best path of each utterance; see ``Decoder``.

        Args:
            head: scores frames.
            encodings: (B, T, D).
            num_frames: (B,) valid frames.
        """
        log_probs, labels = head.frame_log_probs(encodings).max(dim=-1)
        results = []
        for row, probs, length in zip(*map(devices.to_host, (labels, log_probs, num_frames)), strict=True):
            runs = [list(run) for _, run in groupby(range(length), key=row.__getitem__)]
            # a token is placed where it is most probable
            peaks = [max(run, key=probs.__getitem__) for run in runs if row[run[0]] != BLANK_ID]
            tokens, of_tokens = ([values[t] for t in peaks] for values in (row, probs))
            results.append([Hypothesis(tokens, peaks, of_tokens, sum(probs[:length]))])
        return results


class CtcStream:
    """Continues with each piece of an utterance, and finds the tokens that ``CtcGreedy`` finds in the whole.

    Attributes:
        tokens: found so far.
        num_silent: frames since the last token.
    """

    def __init__(self, head: FrameScores) -> None:
        self.head, self.last = head, BLANK_ID
        self.tokens: list[int] = []
        self.num_silent = 0

    def accept(self, encodings: Tensor) -> None:
        """Search in encodings (1, T, D)."""
        for label in devices.to_host(self.head.frame_log_probs(encodings)[0].argmax(dim=-1)):
            self.num_silent = self.num_silent + 1 if label == BLANK_ID else 0
            if label not in (BLANK_ID, self.last):
                self.tokens.append(label)
            self.last = label


class TransducerGreedy:
    """Takes the most probable label, and with a blank the next frame; all utterances of a batch at once.

    Several frames are joined at once: until a token is found, all of them have the same prediction.

    Args:
        max_symbols: tokens that a frame may have; the search then goes to the next frame, as with a blank.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", arXiv:1211.3711, section 2.6, with a beam
        of one. Differs: a limit of tokens per frame.
    """

    needs = Transduces

    def __init__(self, max_symbols: PositiveInt = 3) -> None:
        self.max_symbols = max_symbols

    def __call__(self, head: Transduces, encodings: Tensor, num_frames: Tensor) -> list[list[Hypothesis]]:
        """Return the path of each utterance, of encodings (B, T, D) and valid lengths (B,); see ``Decoder``.

        Its score is the log-probability of all labels.
        """
        # the last frames are joined together with others too; what follows the end counts as blank below
        frames, size = F.pad(head.project(encodings), (0, 0, 0, NUM_AHEAD)), len(encodings)
        context = torch.full((size, head.context_size), -1, device=encodings.device)
        context[:, -1] = BLANK_ID
        predictions, scores = head.predict(context), encodings.new_zeros(size, dtype=torch.float32)
        hypotheses = [Hypothesis([], [], [], 0.0) for _ in range(size)]
        ahead = torch.arange(NUM_AHEAD, device=encodings.device)
        at, in_a_row = torch.zeros_like(num_frames), torch.zeros_like(num_frames)  # the frame; tokens since a blank
        while len(rows := (at < num_frames).nonzero().squeeze(1)):
            joined = at[rows, None] + ahead
            log_probs, labels = head.join(frames[rows[:, None], joined], predictions[rows, None]).max(dim=-1)
            is_blank = (labels == BLANK_ID) | (joined >= num_frames[rows, None])
            num_blanks = is_blank.cumprod(dim=1).sum(dim=1)  # before the first token; W without one
            taken = (ahead <= num_blanks[:, None]) & (joined < num_frames[rows, None])
            scores[rows] += log_probs.where(taken, 0).sum(dim=1)
            at[rows] += num_blanks
            speak = num_blanks < NUM_AHEAD
            in_a_row[rows] = in_a_row[rows].where(num_blanks == 0, 0) + speak
            rows, first = rows[speak], (speak, num_blanks[speak])
            if not len(rows):
                continue
            context[rows] = torch.cat((context[rows, 1:], labels[first][:, None]), dim=1)
            predictions[rows] = head.predict(context[rows])
            values = map(devices.to_host, (rows, labels[first], at[rows], log_probs[first]))
            for row, label, frame, log_prob in zip(*values, strict=True):
                hypotheses[row].tokens.append(label)
                hypotheses[row].frames.append(frame)
                hypotheses[row].log_probs.append(log_prob)
            # without a limit a head that never predicts a blank would not leave the frame
            at[rows] += in_a_row[rows] % self.max_symbols == 0
        return [
            [replace(hypothesis, score=score)]
            for hypothesis, score in zip(hypotheses, devices.to_host(scores), strict=True)
        ]


class TransducerStream:
    """The tokens that ``TransducerGreedy`` with the same ``max_symbols`` finds in the whole; see ``CtcStream``."""

    def __init__(self, head: Transduces, max_symbols: int) -> None:
        self.head, self.max_symbols = head, max_symbols
        self.context = torch.tensor([[-1] * (head.context_size - 1) + [BLANK_ID]])
        self.prediction: Tensor | None = None
        self.tokens: list[int] = []
        self.num_silent = 0

    def accept(self, encodings: Tensor) -> None:
        """Search in encodings (1, T, D)."""
        if self.prediction is None:
            self.context = self.context.to(encodings.device)
            self.prediction = self.head.predict(self.context)
        for frame in self.head.project(encodings)[0]:
            self.num_silent += 1
            for _ in range(self.max_symbols):
                label = self.head.join(frame[None], self.prediction).argmax(dim=-1)
                (token,) = devices.to_host(label)
                if token == BLANK_ID:
                    break
                self.tokens.append(token)
                self.num_silent = 0
                self.context = torch.cat((self.context[:, 1:], label[None]), dim=1)
                self.prediction = self.head.predict(self.context)
