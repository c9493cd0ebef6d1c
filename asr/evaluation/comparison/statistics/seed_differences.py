"""Differences between systems in a number that each run has, such as a time: paired by seed, tested, corrected.

R simulations (batch), S seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from asr.evaluation.comparison.result import Verdict
from asr.evaluation.comparison.speed import SeedContrast
from asr.evaluation.comparison.statistics.estimate import Estimate
from asr.evaluation.comparison.statistics.moderation import moderated, pooled_variance
from asr.evaluation.comparison.statistics.multiple_testing import Pair, holm

Array = NDArray[np.float64]


class SeedDifferences:
    """Differences of every pair of systems; all their verdicts together are one family of hypotheses.

    Seeds are the only population: the development sets are those that all runs were validated on.

    Args:
        values: by system and seed; smaller is better.
        level: of the intervals and verdicts.
        resolution: of the values; what differs by less may be equal.
        unknown: systems that are not compared with each other.
    """

    def __init__(
        self,
        values: Mapping[str, Mapping[int, float]],
        level: float,
        resolution: float,
        unknown: Collection[str] = (),
    ) -> None:
        self.alpha = 1 - level
        self.estimates: dict[Pair, Estimate] = {}
        for pair in itertools.combinations(values, 2):
            seeds = sorted(set(values[pair[0]]) & set(values[pair[1]]))
            if seeds and not set(pair) <= set(unknown):
                first, second = (np.array([values[name][seed] for seed in seeds]) for name in pair)
                self.estimates[pair] = paired_estimate(first - second, resolution)
        tested = [pair for pair, found in self.estimates.items() if found.num_seeds > 1]
        systems = sorted({name for pair in tested for name in pair})
        common = sorted(set.intersection(*(set(values[name]) for name in systems))) if systems else []
        if len(common) > 1:
            table = np.array([[values[name][seed] for seed in common] for name in systems])
            together = moderated([self.estimates[pair] for pair in tested], pooled_variance(table))
            self.estimates |= dict(zip(tested, together, strict=True))
        p_values = holm(np.array([float(p_value(self.estimates[pair])) for pair in tested]))
        self.adjusted = dict(zip(tested, p_values.tolist(), strict=True))
        self.num_found = int((p_values <= self.alpha).sum())

    def contrast(self, system: str, other: str) -> SeedContrast | None:
        """Return the difference of two systems; None if they are not compared."""
        reverse = (other, system) in self.estimates
        pair = (other, system) if reverse else (system, other)
        if pair not in self.estimates:
            return None
        found = self.estimates[pair]
        mean = float(0 - found.mean if reverse else found.mean)
        if pair not in self.adjusted:
            return SeedContrast(other, 1, mean, -np.inf, np.inf, None, "one seed: not compared")
        is_found = self.adjusted[pair] <= self.alpha
        # Holm's last step decides about those that are left; what was found is cut at 0 instead
        num = len(self.adjusted) - (0 if is_found else self.num_found)
        half = float(half_width(found, self.alpha / num))
        low, high = mean - half, mean + half
        verdict: Verdict = "cannot distinguish"
        if is_found:
            low, high = (low, min(high, 0.0)) if mean < 0 else (max(low, 0.0), high)
            verdict = "better" if mean < 0 else "worse"
        return SeedContrast(other, found.num_seeds, mean, low, high, self.adjusted[pair], verdict)


def paired_estimate(differences: Array, resolution: float) -> Estimate:
    """Return the mean of differences (R, S), whose variance over seeds is at least that of rounding."""
    num_seeds = differences.shape[-1]
    spread = differences.var(-1, ddof=1) if num_seeds > 1 else np.zeros(differences.shape[:-1])
    spread = np.maximum(spread, resolution**2 / 12)
    mean = differences.mean(-1)
    return Estimate(mean, spread / num_seeds, np.zeros_like(mean), num_seeds, num_seeds - 1, np.inf)


def half_width(found: Estimate, alpha: float) -> Array:
    """Return half the width of the t interval over seeds."""
    return np.asarray(stats.t.isf(alpha / 2, found.seed_freedom) * np.sqrt(found.seed_variance))


def p_value(found: Estimate) -> Array:
    """Return the two-sided p-value of the t-test over seeds."""
    return np.asarray(2 * stats.t.sf(np.abs(found.mean) / np.sqrt(found.seed_variance), found.seed_freedom))
