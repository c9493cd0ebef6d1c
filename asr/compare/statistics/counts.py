"""Word errors of all systems on one test set, summed over independent units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asr.compare.inputs.runs import Run
from asr.compare.result import Scale
from asr.compare.statistics.estimate import effective_number
from asr.compare.statistics.judge import Judge

Counts = NDArray[np.int64]
Array = NDArray[np.float64]
LEAST_ERRORS = 0.5  # that a rate without any error counts as in a ratio


@dataclass(frozen=True)
class SetCounts:
    """Word errors of all systems on the same utterances; U units as in ``estimate``.

    Attributes:
        errors: (U,) by system and seed.
        words: (U,) in the references.
        unit: what one unit is.
        names: (U,) of the units.
    """

    errors: Mapping[str, Mapping[int, Counts]]
    words: Counts
    unit: Literal["speaker", "utterance"]
    names: Sequence[str] = ()

    def matrix(self, system: str, seeds: Iterable[int]) -> Counts:
        """Return the errors (S, U) of a system."""
        return np.stack([self.errors[system][seed] for seed in seeds])

    def wers(self, system: str, seeds: Iterable[int]) -> list[float]:
        """Return the WER of each seed."""
        return [float(self.errors[system][seed].sum() / self.words.sum()) for seed in seeds]

    @cached_property
    def effective_units(self) -> float:
        """How many units of one size would decide a WER as evenly; see ``effective_number``."""
        return effective_number(self.words)

    def geometric_mean(self, system: str) -> float:
        """Return the geometric mean of the WERs, of rates as in ``on_scale``."""
        values, *_ = on_scale(self.matrix(system, self.errors[system]), self.words, "ratio")
        return float(np.exp(values.mean()))

    def judge(self, alpha: float, scale: Scale, has_seeds: bool = True) -> Judge:
        """Return the judge of these error rates."""
        values: dict[str, dict[int, float]] = {}
        moves: dict[str, dict[int, Array]] = {}
        resolution = {}
        for system, by_seed in self.errors.items():
            seeds = sorted(by_seed)
            matrix = self.matrix(system, seeds)
            rates, without, grain = on_scale(matrix, self.words, scale)
            values[system] = dict(zip(seeds, rates.tolist(), strict=True))
            moves[system] = dict(zip(seeds, without, strict=True))
            resolution[system] = float(grain)
        return Judge(values, resolution, alpha, scale, moves, self.effective_units, has_seeds)


def on_scale(errors: Counts, words: Counts, scale: Scale) -> tuple[Array, Array, Array]:
    """Return error rates as they are compared: as logarithms, for ratios, or as they are.

    Ratios are those of geometric means, of rates between half an error and 100 %: a run that fails is as bad as one
    that recognizes nothing, and one without errors has a logarithm.

    Args:
        errors: (..., S, U).
        words: (U,).
        scale: of the contrasts.

    Returns:
        Values (..., S); by how much each moves without one unit (..., S, U), for the jackknife; and what one error more
        changes in a typical run of each system (...).
    """
    total = int(words.sum())
    num = errors.sum(-1)
    if scale == "points":
        values, without = num / total, (num[..., None] - errors) / (total - words)
        return values, without - values[..., None], np.full(num.shape[:-1], 1 / total)
    clipped = np.clip(num, LEAST_ERRORS, total)
    without = np.clip(num[..., None] - errors, LEAST_ERRORS, total - words) / (total - words)
    values = np.log(clipped / total)
    return values, np.log(without) - values[..., None], 1 / clipped.mean(-1)


def count_errors(runs: Sequence[Run], name: str) -> SetCounts:
    """Sum the word errors on a test set by speaker.

    Errors of one speaker depend on each other, so that utterances are not independent units. They are the units all the
    same if a speaker is unknown, if only one has words, and if training data have speakers of the set: then the result
    is about these speakers alone.
    """
    first = runs[0].sets[name]
    speaking = {speaker for speaker, num_words in zip(first.speakers, first.words, strict=True) if num_words}
    by_speaker = all(first.speakers) and len(speaking) > 1 and not first.seen_speakers
    labels = first.speakers if by_speaker else first.ids
    names, units = np.unique(np.array([str(label) for label in labels]), return_inverse=True)

    def summed(counts: Sequence[int]) -> Counts:
        return np.bincount(units, weights=counts).astype(np.int64)

    errors: dict[str, dict[int, Counts]] = defaultdict(dict)
    for run in runs:
        errors[run.system][run.seed] = summed(run.sets[name].errors)
    return SetCounts(errors, summed(first.words), "speaker" if by_speaker else "utterance", names.tolist())
