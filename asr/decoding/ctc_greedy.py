"""Greedy CTC search, of whole utterances and piece by piece: the best token of every frame.

B batch, T frames, D width.
"""

from __future__ import annotations

from itertools import groupby

from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.models import devices
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
