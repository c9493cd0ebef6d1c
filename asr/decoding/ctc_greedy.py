"""Greedy CTC search, of whole utterances and piece by piece: the best token of every frame.

B batch, T frames, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from torch import Tensor

from asr import devices
from asr.decoding.hypothesis import Hypothesis
from asr.models.heads.protocols import FrameScores
from asr.text.vocabulary import BLANK_ID


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
        rows = zip(*map(devices.to_host, (labels, log_probs, num_frames)), strict=True)
        return [[_best_path(labels[:length], log_probs[:length])] for labels, log_probs, length in rows]


def _best_path(labels: Sequence[int], log_probs: Sequence[float]) -> Hypothesis:
    """Return a hypothesis from the label of each frame; a token is placed where it is most probable."""
    runs = [list(run) for _, run in groupby(range(len(labels)), key=labels.__getitem__)]
    peaks = [max(run, key=log_probs.__getitem__) for run in runs if labels[run[0]] != BLANK_ID]
    return Hypothesis([labels[t] for t in peaks], peaks, [log_probs[t] for t in peaks], sum(log_probs))


class CtcStream:
    """The tokens that ``CtcGreedy`` finds in the whole."""

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
