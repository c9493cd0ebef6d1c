"""Corrections for the number of comparisons that one question asks; M comparisons, K systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.compare.statistics.estimate import Estimate

Array = NDArray[np.float64]
Pair = tuple[str, str]


def holm(p_values: Array) -> Array:
    """Adjust p-values (..., M): with M true hypotheses, any falls below α with a probability of at most α.

    Reference:
        Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6,
        65-70.
    """
    order = np.argsort(p_values, axis=-1)
    factors = np.arange(p_values.shape[-1], 0.0, -1)
    raised = np.maximum.accumulate(np.take_along_axis(p_values, order, -1) * factors, axis=-1)
    adjusted = np.empty_like(p_values)
    np.put_along_axis(adjusted, order, np.minimum(raised, 1), -1)
    return adjusted


@dataclass(frozen=True)
class Decisions:
    """Verdicts and intervals of M differences; all (..., M).

    Attributes:
        p_values: of each difference, uncorrected.
        adjusted: a difference is significant if this is at most α.
        low: lower ends of the intervals.
        high: upper ends.
    """

    p_values: Array
    adjusted: Array
    low: Array
    high: Array


def decide(estimates: Sequence[Estimate], alpha: float) -> Decisions:
    """Test M differences: any verdict is false with a probability of at most α, and so is any interval.

    Verdicts are Holm's; intervals are at level α/M. Holm decides more than these intervals show: where one would
    contain 0 although its difference is significant, it ends at 0. What is significant by noise that was learned from
    other systems must also be so, without correction, by its own: of ten systems, two equal ones that vary twice as
    much as eight far worse ones were found different in 4.5 of 100 tables at 97.5 % without this, and in 2.4 with it.
    """
    mean = np.stack([estimate.mean for estimate in estimates], -1)
    p_values = np.stack([estimate.p_value() for estimate in estimates], -1)
    alone = np.stack([np.zeros_like(one.mean) if one.own is None else one.own.p_value() for one in estimates], -1)
    adjusted = np.maximum(holm(p_values), alone)
    apart = adjusted <= alpha
    half = np.stack([surely_apart(estimate, alpha / len(estimates), alpha) for estimate in estimates], -1)
    low = np.where(apart & (mean > 0), np.maximum(mean - half, 0), mean - half)
    high = np.where(apart & (mean < 0), np.minimum(mean + half, 0), mean + half)
    return Decisions(p_values, adjusted, low, high)


def surely_apart(estimate: Estimate, corrected: float, alpha: float) -> Array:
    """Return the difference (R) from which on it is significant, at a corrected level and by its own noise at α."""
    half = estimate.half_width(corrected)
    return half if estimate.own is None else np.maximum(half, estimate.own.half_width(alpha))


def may_be_best(against: Mapping[str, Sequence[Estimate]], alpha: float) -> dict[str, NDArray[np.bool_]]:
    """Return which systems may be the best: a set that contains the best with a probability of at least 1 - α.

    A system leaves the set if it is worse than any other one, tested one-sided at level α/(K - 1). The best leaves it
    only if one of K - 1 tests is wrong.

    Args:
        against: of each system, its differences from each other one; positive where it is worse.
        alpha: 1 - level.

    Returns:
        By system, whether it is in the set (...).

    Reference:
        Hsu 1981, "Simultaneous confidence intervals for all distances from the 'best'", Annals of Statistics 9,
        1026-1034. Differs: Bonferroni's correction in place of equal variances and equal correlations.
    """
    level = min(1.0, 2 * alpha / max(1, len(against) - 1))  # half_width takes that of a two-sided test
    return {
        name: ~np.any([one.mean > surely_apart(one, level, min(1.0, 2 * alpha)) for one in estimates], axis=0)
        for name, estimates in against.items()
    }
