"""What every decoder returns, and what it needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


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
