"""Runs that never learned, or never finished: counted and tested separately from the error rates of the others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from scipy import stats

from asr.compare.inputs.runs import Run
from asr.compare.result import Reliability
from asr.compare.statistics.multiple_testing import holm


def learned_runs(runs: Mapping[str, Sequence[Run]], test_set: str) -> dict[str, list[Run]]:
    """Return the runs that learned, by system: any other would decide a mean, and says nothing of the rest."""
    return {system: [run for run in group if run.sets[test_set].has_learned] for system, group in runs.items()}


def reliabilities(counts: Mapping[str, tuple[int, int]]) -> dict[str, Reliability]:
    """Compare each system's share of runs that learned with the highest share of any.

    The highest is known only after the runs. Corrected for the pairs with it alone, eight equal systems of which half
    of 20 runs learn differed significantly in 6 of 100 comparisons; so p-values are corrected for all pairs.

    Args:
        counts: runs that learned, and all runs, by system.

    Returns:
        By system, with p-values of Fisher's exact test; None for the highest itself.
    """
    best = max(counts, key=lambda name: (counts[name][0] / counts[name][1], counts[name][1]))
    pairs = [*itertools.combinations(counts, 2)]
    p_values = holm(np.array([_fisher(counts[system], counts[other]) for system, other in pairs]))
    adjusted = {frozenset(pair): float(p) for pair, p in zip(pairs, p_values, strict=True)}
    return {
        name: Reliability(learned, total, adjusted.get(frozenset((best, name))))
        for name, (learned, total) in counts.items()
    }


@lru_cache(maxsize=4096)
def _fisher(first: tuple[int, int], second: tuple[int, int]) -> float:
    table = [(learned, total - learned) for learned, total in (first, second)]
    return float(stats.fisher_exact(table).pvalue)
