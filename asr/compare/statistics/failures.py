"""Runs that never learned, or never finished: how often that happens to each system."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from scipy import stats

from asr.compare.result import Reliability
from asr.compare.statistics.multiple_testing import holm


def reliabilities(counts: Mapping[str, tuple[int, int]], baseline: str, alpha: float) -> dict[str, Reliability]:
    """Compare each system's share of runs that learned with that of the baseline.

    Args:
        counts: runs that learned, and all runs, by system.
        baseline: one of the systems.
        alpha: 1 - level of the intervals of the shares.

    Returns:
        By system, with exact intervals (Clopper and Pearson), and p-values of Fisher's exact test after Holm's
        correction; None for the baseline itself.
    """
    others = [name for name in counts if name != baseline]
    p_values = holm(np.array([_fisher(counts[name], counts[baseline]) for name in others])) if others else ()
    adjusted = dict(zip(others, map(float, p_values), strict=True))
    return {name: Reliability(*pair, *_interval(*pair, alpha), adjusted.get(name)) for name, pair in counts.items()}


@lru_cache(maxsize=4096)
def _fisher(first: tuple[int, int], second: tuple[int, int]) -> float:
    table = [(learned, total - learned) for learned, total in (first, second)]
    return float(stats.fisher_exact(table).pvalue)


@lru_cache(maxsize=4096)
def _interval(learned: int, total: int, alpha: float) -> tuple[float, float]:
    ends = stats.binomtest(learned, total).proportion_ci(1 - alpha, method="exact")
    return float(ends.low), float(ends.high)
