"""Differences between all pairs of systems on one test set, corrected for the number of pairs."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
from scipy import stats

from asr.compare.result import Difference, Power, Verdict
from asr.compare.statistics.counts import SetCounts
from asr.compare.statistics.estimate import Estimate, estimate
from asr.compare.statistics.moderation import largest_block, moderated, pooled_variance
from asr.compare.statistics.multiple_testing import Pair, simultaneous
from asr.compare.statistics.omnibus import omnibus
from asr.compare.statistics.power import FEW_WERS, Design


class Differences:
    """Differences of every pair of systems; all their verdicts and intervals hold together, see ``simultaneous``.

    Args:
        counts: errors of all systems.
        level: probability that all verdicts and intervals are right.
        only_with: the system whose pairs alone are tested; None: all pairs.

    Reference:
        Dunnett 1955, "A multiple comparison procedure for comparing several treatments with a control", Journal of the
        American Statistical Association 50, 1096-1121, for testing against one system alone. Differs: K - 1 pairs are
        corrected as all K(K - 1)/2 are, without the correlation of pairs that share a system, and without taking all
        variances for equal. Of eight systems over five seeds, this found one that is better by two standard deviations
        in 42 of 100 simulations, all pairs in 23, and scipy.stats.dunnett, with equal variances, in 67.
    """

    def __init__(self, counts: SetCounts, level: float, only_with: str | None = None) -> None:
        self.counts, self.alpha = counts, 1 - level
        self.estimates: dict[Pair, Estimate] = {}
        for pair in itertools.combinations(counts.errors, 2):
            if seeds := counts.seeds(*pair):
                # the same seeds and units for both: what is hard for both systems cancels out
                first, second = (counts.matrix(name, seeds) for name in pair)
                self.estimates[pair] = estimate(first - second, counts.words)
        # one seed says nothing about other seeds: no test
        several = [pair for pair, found in self.estimates.items() if found.num_seeds > 1]
        systems, seeds = largest_block(counts.errors)
        self.pooled, self.omnibus = None, None
        if systems:
            wers = np.array([counts.wers(name, seeds) for name in systems])
            self.pooled = pooled_variance(wers)
            within = [pair for pair in several if {*pair} <= {*systems}]
            together = moderated([self.estimates[pair] for pair in within], self.pooled)
            self.estimates |= dict(zip(within, together, strict=True))
            self.omnibus = omnibus(dict(zip(systems, wers, strict=True))) if len(systems) > 2 else None
        tested = [pair for pair in several if only_with is None or only_with in pair]
        self.tested = {pair: place for place, pair in enumerate(tested)}
        self.together = simultaneous([self.estimates[pair] for pair in tested], self.alpha) if tested else None

    def all_pairs(self) -> list[Difference]:
        """Return all pairs with a seed in common, each once, the better system first; the largest difference first."""
        pairs = (pair if found.mean <= 0 else pair[::-1] for pair, found in self.estimates.items())
        found = [one for pair in pairs if (one := self.difference(*pair)) is not None]
        return sorted(found, key=lambda one: one.mean)

    def difference(self, system: str, other: str) -> Difference | None:
        """Return the difference of two systems; None if they have no seed in common."""
        reverse = (other, system) in self.estimates
        pair = (other, system) if reverse else (system, other)
        if pair not in self.estimates:
            return None
        found, place = self.estimates[pair], self.tested.get(pair)
        mean, half = float(found.mean), float(found.half_width(self.alpha))
        low, high, p_value, adjusted = mean - half, mean + half, None, None
        verdict: Verdict = "one seed: not compared"
        if found.num_seeds > 1 and place is None:
            verdict, low, high = "not tested", -math.inf, math.inf
        if self.together is not None and place is not None:
            fields = self.together.low, self.together.high, self.together.p_values, self.together.adjusted
            low, high, p_value, adjusted = (float(field[place]) for field in fields)
            better: Verdict = "better" if (mean > 0) == reverse else "worse"
            verdict = "cannot distinguish" if adjusted > self.alpha else better
        if reverse:
            # 0 - x, because -x would print the difference of equal systems as -0.00
            mean, low, high = 0 - mean, 0 - high, 0 - low
        return Difference(
            system=system,
            other=other,
            num_seeds=found.num_seeds,
            mean=mean,
            low=low,
            high=high,
            probability_of_improvement=self._probability(system, other) if found.num_seeds > 1 else None,
            p_value=p_value,
            p_adjusted=adjusted,
            verdict=verdict,
        )

    def power(self, best: str) -> Power | None:
        """Return what the comparison can find, and what it would take to tell the nearest system from the best one.

        The variance over seeds is that of the systems and seeds of ``largest_block``, its range that of a χ²
        distribution; None if there are none, or if no pair is tested.
        """
        if self.pooled is None or not self.tested:
            return None
        value, freedom, num_seeds = float(self.pooled.value), self.pooled.freedom, self.pooled.num_seeds
        design = Design(
            seed_variance=value,
            test_variance=statistics.mean(float(self.estimates[pair].test_variance) for pair in self.tested),
            num_systems=1 + freedom // (num_seeds - 1),
            num_seeds=num_seeds,
            effective_units=self.estimates[next(iter(self.tested))].effective_units,
            alpha=self.alpha / len(self.tested),
        )
        low, high = (
            replace(design, seed_variance=value * freedom / quantile).detectable(FEW_WERS)
            for quantile in stats.chi2.isf((self.alpha / 2, 1 - self.alpha / 2), freedom)
        )
        differences = [self.difference(best, other) for other in self.counts.errors if other != best]
        open_ones = [one for one in differences if one is not None and one.verdict == "cannot distinguish"]
        nearest = min(open_ones, key=lambda one: abs(one.mean), default=None)
        return Power(
            detectable=design.detectable(),
            low=low,
            high=high,
            nearest=None if nearest is None else nearest.other,
            seeds_needed=None if nearest is None else design.seeds_to_find(nearest.mean, nearest.num_seeds),
        )

    def _probability(self, system: str, other: str) -> float:
        """Return the share of all pairs of seeds in which the system has the lower WER; a tie counts as half a pair.

        Reference:
            Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", and their
            library rliable, which reports it as probability of improvement. Differs: one task, no average over tasks.
        """
        seeds = self.counts.seeds(system, other)
        ours, theirs = (np.array(self.counts.wers(name, seeds)) for name in (system, other))
        below, same = ours[:, None] < theirs, ours[:, None] == theirs
        return float((below + 0.5 * same).mean())
