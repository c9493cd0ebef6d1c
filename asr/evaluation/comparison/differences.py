"""Contestants on one test set → their differences, corrected for how many were looked at."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asr.evaluation.comparison.estimate import Estimate, estimate, holm
from asr.evaluation.comparison.result import Difference, Verdict

Errors = NDArray[np.int64]
Pair = tuple[str, str]


@dataclass(frozen=True)
class SetCounts:
    """Word errors of all contestants on the same utterances; U units as in ``estimate``.

    Attributes:
        errors: per unit (U,), by contestant and seed.
        words: (U,) in the references.
        unit: what a unit is.
    """

    errors: Mapping[str, Mapping[int, Errors]]
    words: Errors
    unit: Literal["speaker", "utterance"]

    def matrix(self, contestant: str, seeds: Iterable[int]) -> Errors:
        """Errors (S, U) of a contestant."""
        return np.stack([self.errors[contestant][seed] for seed in seeds])

    def seeds(self, *contestants: str) -> list[int]:
        """Seeds that all these contestants have."""
        return sorted(set.intersection(*(set(self.errors[name]) for name in contestants)))

    def wers(self, contestant: str, seeds: Iterable[int]) -> list[float]:
        """WER of each seed."""
        return [float(self.errors[contestant][seed].sum() / self.words.sum()) for seed in seeds]


def pair_weights(pairs: Sequence[Pair], baseline: str | None) -> NDArray[np.float64]:
    """Return the share of the permitted false alarms that each pair of contestants gets.

    Pairs with the baseline are known beforehand and few: together they get a half, or their equal share if that is
    more. The best is known only after all pairs were seen, and the best of many looks better than it is; therefore all
    other pairs share the rest, although only those with the best are shown.
    """
    concerned = np.array([baseline in pair for pair in pairs])
    equal, number = 1 / len(pairs), int(concerned.sum())
    if number in (0, len(pairs)):
        return np.full(len(pairs), equal)
    of_baseline = max(0.5 / number, equal)
    return np.where(concerned, of_baseline, (1 - number * of_baseline) / (len(pairs) - number))


class Differences:
    """Differences of every pair of contestants; all their verdicts together are one family.

    If no contestant differs from any other, some verdict says otherwise with a probability of at most 1 - level.

    Args:
        counts: errors of all contestants.
        baseline: name of the contestant that others are compared with, or None.
        level: of the intervals and verdicts.
    """

    def __init__(self, counts: SetCounts, baseline: str | None, level: float) -> None:
        self.counts, self.alpha = counts, 1 - level
        pairs = [pair for pair in itertools.combinations(counts.errors, 2) if counts.seeds(*pair)]
        self.estimates = {pair: self._estimate(pair) for pair in pairs}
        tested = [pair for pair in pairs if self.estimates[pair].num_seeds > 1]
        weights = pair_weights(tested, baseline) if tested else np.ones(0)
        p_values = np.array([float(self.estimates[pair].p_value()) for pair in tested])
        self.weights = dict(zip(tested, weights.tolist(), strict=True))
        self.p_values = dict(zip(tested, p_values.tolist(), strict=True))
        self.adjusted = dict(zip(tested, holm(p_values, weights).tolist(), strict=True))

    def _estimate(self, pair: Pair) -> Estimate:
        seeds = self.counts.seeds(*pair)
        first, second = (self.counts.matrix(name, seeds) for name in pair)
        return estimate(first - second, self.counts.words)

    def difference(self, contestant: str, other: str) -> Difference | None:
        """Return what is known of two contestants; None where they have no seed in common."""
        reverse = (other, contestant) in self.estimates
        pair = (other, contestant) if reverse else (contestant, other)
        if pair not in self.estimates:
            return None
        found = self.estimates[pair]
        # 0 - x, because -x would print the difference of equals as -0.00
        mean, half = float(0 - found.mean if reverse else found.mean), float(found.half_width(self.alpha))
        tested = pair in self.adjusted
        return Difference(
            other=other,
            num_seeds=found.num_seeds,
            mean=mean,
            low=mean - half,
            high=mean + half,
            probability_of_improvement=self._probability(contestant, other) if tested else None,
            p_value=self.p_values[pair] if tested else None,
            p_adjusted=self.adjusted[pair] if tested else None,
            smallest_detectable=float(found.smallest_detectable(self.alpha * self.weights[pair])) if tested else None,
            verdict=self._verdict(mean, self.adjusted[pair]) if tested else "one seed: not compared",
        )

    def _probability(self, contestant: str, other: str) -> float:
        """Share of all pairs of seeds in which the contestant has the lower WER, a tie being half a pair.

        Reference:
            Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", and their
            library rliable, which reports it as probability of improvement. Differs: one task, nothing is averaged.
        """
        seeds = self.counts.seeds(contestant, other)
        ours, theirs = (np.array(self.counts.wers(name, seeds)) for name in (contestant, other))
        below, same = ours[:, None] < theirs, ours[:, None] == theirs
        return float((below + 0.5 * same).mean())

    def _verdict(self, mean: float, p_adjusted: float) -> Verdict:
        if p_adjusted > self.alpha:
            return "cannot distinguish"
        return "better" if mean < 0 else "worse"
