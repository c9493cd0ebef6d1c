"""Differences between systems in a number that each run has, such as a time: paired by seed, tested, corrected.

R simulations (batch), S seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from asr.compare.result import Verdict
from asr.compare.speed import SeedContrast
from asr.compare.statistics.estimate import Estimate
from asr.compare.statistics.moderation import largest_block, moderated, pooled_variance
from asr.compare.statistics.multiple_testing import Pair, simultaneous

Array = NDArray[np.float64]


class SeedDifferences:
    """Differences of every pair of systems; all their verdicts and intervals hold together, see ``simultaneous``.

    Seeds are the only population: the development sets are those that all runs were validated on.

    Args:
        values: by system and seed; smaller is better.
        level: of the intervals and verdicts.
        resolution: of the values; what differs by less may be equal.
        unknown: systems that are not compared with each other.
        only_with: the system whose pairs alone are tested; None: all pairs.
    """

    def __init__(
        self,
        values: Mapping[str, Mapping[int, float]],
        level: float,
        resolution: float,
        unknown: Collection[str] = (),
        only_with: str | None = None,
    ) -> None:
        self.alpha = 1 - level
        self.estimates: dict[Pair, Estimate] = {}
        for pair in itertools.combinations(values, 2):
            seeds = sorted(set(values[pair[0]]) & set(values[pair[1]]))
            if seeds and not set(pair) <= set(unknown):
                first, second = (np.array([values[name][seed] for seed in seeds]) for name in pair)
                self.estimates[pair] = paired_estimate(first - second, resolution)
        several = [pair for pair, found in self.estimates.items() if found.num_seeds > 1]
        systems, common = largest_block(values)
        if systems:
            table = np.array([[values[name][seed] for seed in common] for name in systems])
            within = [pair for pair in several if {*pair} <= {*systems}]
            together = moderated([self.estimates[pair] for pair in within], pooled_variance(table))
            self.estimates |= dict(zip(within, together, strict=True))
        tested = [pair for pair in several if only_with is None or only_with in pair]
        self.tested = {pair: place for place, pair in enumerate(tested)}
        self.together = simultaneous([self.estimates[pair] for pair in tested], self.alpha) if tested else None

    def all_pairs(self) -> list[SeedContrast]:
        """Return all pairs that are compared, each once, the better system first; the largest difference first."""
        pairs = (pair if found.mean <= 0 else pair[::-1] for pair, found in self.estimates.items())
        found = [one for pair in pairs if (one := self.contrast(*pair)) is not None]
        return sorted(found, key=lambda one: one.value)

    def contrast(self, system: str, other: str) -> SeedContrast | None:
        """Return the difference of two systems; None if they are not compared."""
        reverse = (other, system) in self.estimates
        pair = (other, system) if reverse else (system, other)
        if pair not in self.estimates:
            return None
        found = self.estimates[pair]
        mean, place = float(found.mean), self.tested.get(pair)
        low, high, adjusted = -np.inf, np.inf, None
        verdict: Verdict = "not tested" if found.num_seeds > 1 else "one seed: not compared"
        if self.together is not None and place is not None:
            fields = self.together.low, self.together.high, self.together.adjusted
            low, high, adjusted = (float(field[place]) for field in fields)
            better: Verdict = "better" if (mean > 0) == reverse else "worse"
            verdict = "cannot distinguish" if adjusted > self.alpha else better
        if reverse:
            # 0 - x, because -x would print the difference of equal systems as -0.00
            mean, low, high = 0 - mean, 0 - high, 0 - low
        return SeedContrast(system, other, found.num_seeds, mean, low, high, adjusted, verdict)


def paired_estimate(differences: Array, resolution: float) -> Estimate:
    """Return the mean of differences (R, S), whose variance over seeds is at least that of rounding."""
    num_seeds = differences.shape[-1]
    spread = differences.var(-1, ddof=1) if num_seeds > 1 else np.zeros(differences.shape[:-1])
    spread = np.maximum(spread, resolution**2 / 12)
    mean = differences.mean(-1)
    return Estimate(mean, spread / num_seeds, np.zeros_like(mean), num_seeds, num_seeds - 1, np.inf, np.inf)
