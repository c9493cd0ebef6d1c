"""Variances over seeds, estimated together: with three seeds each, a pair alone knows little about its own.

R simulations (batch), K systems, S seeds that all systems have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from asr.evaluation.comparison.statistics.estimate import Estimate

Array = NDArray[np.float64]

MOST_SHARE = 0.8  # of the degrees of freedom that the other systems have
NEWTON_STEPS = 20  # of the inverse of trigamma; each at least doubles the digits


def moderated(estimates: Sequence[Estimate], wers: Array) -> list[Estimate]:
    """Return the estimates of differences with variances over seeds that are drawn towards their mean over all pairs.

    The less the variances of the systems seem to differ, the more the mean counts: as much as d₀ degrees of freedom, at
    most 80 % of those that all systems together have more than a pair. Two systems keep the paired t-test.

    Args:
        estimates: of the differences of pairs, not all of the same seeds.
        wers: (R, K, S) of all systems on the seeds that they have in common; at least two.

    Reference:
        Smyth 2004, "Linear models and empirical Bayes methods for assessing differential expression in microarray
        experiments", Statistical Applications in Genetics and Molecular Biology 3, article 3: the moderated t and the
        estimate of d₀ from the spread of log variances. Differs: d₀ is bounded, because few systems may look alike by
        chance; scripts/check_statistics.py shows what the bound costs and prevents.
    """
    num_systems, num_seeds = wers.shape[-2:]
    residuals = wers - wers.mean(-1, keepdims=True) - wers.mean(-2, keepdims=True) + wers.mean((-2, -1), keepdims=True)
    squares = np.square(residuals).sum(-1)
    # differences of two systems have the variances of both
    pooled = 2 * squares.sum(-1) / ((num_systems - 1) * (num_seeds - 1))
    prior = np.zeros_like(pooled)
    if num_systems > 2:
        prior = np.minimum(_prior_freedom(squares, num_seeds - 1), MOST_SHARE * (num_systems - 2) * (num_seeds - 1))
    found = []
    for one in estimates:
        own = one.num_seeds - 1
        per_seed = (prior * pooled + own * one.num_seeds * one.seed_variance) / (prior + own)
        found.append(replace(one, seed_variance=per_seed / one.num_seeds, seed_freedom=prior + own))
    return found


def _prior_freedom(squares: Array, freedom: int) -> Array:
    """Return d₀, from sums of squares (R, K) whose logarithms spread the more, the more the true variances differ."""
    # systems whose seeds agree to the word have no logarithm; they count as very different
    spread = np.log(np.maximum(squares, 1e-12)).var(-1, ddof=1)
    by_chance = special.polygamma(1, freedom / 2)
    excess = spread - by_chance
    known = np.maximum(excess, 1e-6)
    # trigamma is convex and falls: Newton's steps on its reciprocal come from one side
    half = 0.5 + 1 / known
    for _ in range(NEWTON_STEPS):
        value = special.polygamma(1, half)
        half = half + value * (1 - value / known) / special.polygamma(2, half)
    return np.where(excess > 0, 2 * half, np.inf)
