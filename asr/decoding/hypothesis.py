"""What every decoder returns, and what it needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

MAX_BEAM = 1000


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
    """Return hypotheses of one utterance, best first; equal scores have no order of their own."""
    return sorted(hypotheses, key=lambda one: (-one.score, one.tokens))


def check_beam(**sizes: int) -> None:
    """Refuse sizes of a beam, by their names, that are out of their range.

    Raises:
        ValueError: names the option.
    """
    for name, size in sizes.items():
        if not 1 <= size <= MAX_BEAM:
            raise ValueError(f"{name} must be at least 1 and at most {MAX_BEAM}, given {size}")


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
