"""Variances over seeds, estimated together: with three seeds, one pair tells little about its own.

R simulations (batch), K systems, S seeds that all of them have.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from asr.compare.statistics.estimate import Estimate

Array = NDArray[np.float64]

MOST_SHARE = 0.4  # of the degrees of freedom that the other systems have
SMALLEST = 1e-12  # square that still counts
NEWTON_STEPS = 8  # of the inverse of trigamma; each at least doubles the digits


@dataclass(frozen=True)
class PooledVariance:
    """The variance over seeds of the difference of two systems, estimated from all systems together.

    Attributes:
        value: (R) of the difference of two typical systems on one seed: twice the geometric mean of the variances of
            systems, which few unstable ones raise less than the mean; the mean, if fewer than three systems vary.
        freedom: degrees of freedom of the mean variance, if all systems vary alike.
        prior: (R) d₀, degrees of freedom that it adds to the variance of each pair.
        num_seeds: S.
    """

    value: Array
    freedom: int
    prior: Array
    num_seeds: int


def largest_block(seeds: Mapping[str, Collection[int]]) -> tuple[list[str], list[int]]:
    """Return systems and seeds, each of which all these systems have, with the most residual degrees of freedom.

    A system with few seeds is left out where the others know more without it. Empty if no two systems share two seeds.

    Args:
        seeds: by system.
    """
    shared = [sorted(set(first) & set(second)) for first, second in itertools.combinations(seeds.values(), 2)]
    blocks = [
        ([name for name, system_seeds in seeds.items() if set(system_seeds) >= set(some)], some)
        for some in shared
        if len(some) > 1
    ]
    return max(blocks, key=lambda block: ((len(block[0]) - 1) * (len(block[1]) - 1), len(block[0])), default=([], []))


def pooled_variance(wers: Array) -> PooledVariance:
    """Return the typical variance of pairs, and how much it counts for each.

    The less the variances of the systems seem to differ, the more it counts: as much as d₀ degrees of freedom, at most
    40 % of those that all systems together have more than a pair, a third with three systems. Systems with one value
    for all seeds, for example because they never reached a target, are left out: they tell nothing of how others vary.

    Args:
        wers: (R, K, S), at least two systems on at least two seeds.

    Reference:
        Smyth 2004, "Linear models and empirical Bayes methods for assessing differential expression in microarray
        experiments", Statistical Applications in Genetics and Molecular Biology 3, article 3: the moderated t and the
        estimate of d₀ from the spread of log variances. Differs: d₀ is estimated from systems, whose sums of squares
        depend on each other a little, and added to pairs; it is bounded, because few systems may look alike by chance;
        no variance is drawn down; and to one that is c times the typical one, only d₀/c² is added. With d₀ up to 65 %,
        added to all, 8 of 100 tables were wrong that had two equal systems, with ten times the variance of six others,
        all of them far worse. What pairs are drawn up to is larger than Smyth's s₀², by the part that depends on d₀.
        One of eight systems, with ten times the standard deviation of the others, must not hide what distinguishes
        these: with the arithmetic mean in place of the geometric one, and all systems weighted alike, one that is
        better by six standard deviations over five seeds was significantly better than at least one other in 42 of
        100 tables, and now in all (scripts/check_statistics).
    """
    num_systems, num_seeds = wers.shape[-2:]
    around = wers - wers.mean(-1, keepdims=True)
    residuals = around - around.mean(-2, keepdims=True)
    squares = np.square(residuals).sum(-1)
    freedom, half = (num_systems - 1) * (num_seeds - 1), (num_seeds - 1) / 2
    # differences of two systems have the variances of both
    mean = 2 * squares.sum(-1) / freedom
    # what a seed adds to all systems is best seen in those that vary little; of fewer than three nothing is pooled
    varies = np.square(around).sum(-1) > SMALLEST
    weights = 1 / np.maximum(squares + np.median(squares, axis=-1, keepdims=True), SMALLEST)
    weights *= varies | (varies.sum(-1, keepdims=True) < 3)
    weights /= weights.sum(-1, keepdims=True)
    squares = np.square(around - (weights[..., None] * around).sum(-2, keepdims=True)).sum(-1) / (1 - weights)
    # systems whose seeds differ by the same numbers have no logarithm either
    logs = np.ma.log(np.ma.array(squares, mask=~varies | (squares < SMALLEST)))
    num = logs.count(-1)
    typical = 2 * np.exp(np.ma.filled(logs.mean(-1), 0.0) - np.log(2) - special.digamma(half))
    most = np.minimum(MOST_SHARE, (num - 1) / 6) * np.maximum(num - 2, 0) * (num_seeds - 1)
    prior = np.minimum(_prior_freedom(np.ma.filled(logs.var(-1, ddof=1), 0.0), half), most)
    return PooledVariance(np.where(num > 2, typical, mean), freedom, prior, num_seeds)


def moderated(estimates: Sequence[Estimate], pooled: PooledVariance) -> list[Estimate]:
    """Return the estimates of differences with variances over seeds that are drawn up to the typical one of pairs.

    A pair that varies much more than is typical keeps the paired t-test, as two systems do without others.

    Args:
        estimates: of the differences of pairs of systems that ``pooled`` knows; each may have seeds beyond those.
        pooled: of the seeds that all of them have in common.
    """
    moderated_estimates = []
    for estimate in estimates:
        pair_freedom = estimate.num_seeds - 1
        total = pooled.prior + pair_freedom
        alone = estimate.num_seeds * estimate.seed_variance
        mixed = (pooled.prior * pooled.value + pair_freedom * alone) / total
        variance = np.maximum(mixed, alone) / estimate.num_seeds
        excess = np.maximum(alone / np.maximum(pooled.value, SMALLEST), 1)
        freedom = pair_freedom + pooled.prior / excess**2
        moderated_estimates.append(replace(estimate, seed_variance=variance, seed_freedom=freedom))
    return moderated_estimates


def _prior_freedom(spread: Array, half_freedom: float) -> Array:
    """Return d₀, from the variance (R) of logarithms of sums of squares, which grows as the true variances differ."""
    excess = spread - special.polygamma(1, half_freedom)
    clipped = np.maximum(excess, 1e-6)
    # trigamma is convex and falls: Newton's steps on its reciprocal come from one side
    half = 0.5 + 1 / clipped
    for _ in range(NEWTON_STEPS):
        value = special.polygamma(1, half)
        half = half + value * (1 - value / clipped) / special.polygamma(2, half)
    return np.where(excess > 0, 2 * half, np.inf)
