"""Word errors of all systems on one test set, summed over independent units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asr.compare.inputs.runs import Run

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class SetCounts:
    """Word errors of all systems on the same utterances; U units as in ``estimate``.

    Attributes:
        errors: (U,) by system and seed.
        words: (U,) in the references.
        unit: what one unit is.
    """

    errors: Mapping[str, Mapping[int, Counts]]
    words: Counts
    unit: Literal["speaker", "utterance"]

    def matrix(self, system: str, seeds: Iterable[int]) -> Counts:
        """Return the errors (S, U) of a system."""
        return np.stack([self.errors[system][seed] for seed in seeds])

    def seeds(self, *systems: str) -> list[int]:
        """Return the seeds that all these systems have."""
        return sorted(set.intersection(*(set(self.errors[name]) for name in systems)))

    def wers(self, system: str, seeds: Iterable[int]) -> list[float]:
        """Return the WER of each seed."""
        return [float(self.errors[system][seed].sum() / self.words.sum()) for seed in seeds]


def count_errors(runs: Sequence[Run], name: str) -> SetCounts:
    """Sum the word errors on a test set by speaker, or by utterance if any speaker is unknown or only one has words.

    Errors of one speaker depend on each other, so that utterances are not independent units.
    """
    first = runs[0].sets[name]
    speaking = {speaker for speaker, num_words in zip(first.speakers, first.words, strict=True) if num_words}
    by_speaker = all(first.speakers) and len(speaking) > 1
    labels = first.speakers if by_speaker else first.ids
    _, units = np.unique(np.array([str(label) for label in labels]), return_inverse=True)

    def summed(counts: Sequence[int]) -> Counts:
        return np.bincount(units, weights=counts).astype(np.int64)

    errors: dict[str, dict[int, Counts]] = defaultdict(dict)
    for run in runs:
        errors[run.system][run.seed] = summed(run.sets[name].errors)
    return SetCounts(errors, summed(first.words), "speaker" if by_speaker else "utterance")
