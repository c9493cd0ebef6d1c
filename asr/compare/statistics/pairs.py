"""Differences between all pairs of systems, tested together.

R simulations (batch), S seeds.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from asr.compare.result import Difference, Power, SeedContrast, Verdict
from asr.compare.statistics.counts import SetCounts
from asr.compare.statistics.estimate import Estimate, estimate
from asr.compare.statistics.moderation import largest_block, moderated, pooled_variance
from asr.compare.statistics.multiple_testing import Pair, simultaneous
from asr.compare.statistics.omnibus import omnibus
from asr.compare.statistics.power import FEW_WERS, Design

Array = NDArray[np.float64]
Values = Mapping[str, Mapping[int, float]]


class PairTests:
    """Tests of all pairs of systems; all their verdicts and intervals hold together, see ``simultaneous``.

    Args:
        estimates: of the difference of each pair, on the seeds that both systems have.
        values: by system and seed, whose variances over seeds are pooled; smaller is better.
        level: probability that all verdicts and intervals are right.
        only_with: test only pairs with this system; None: all pairs.
        unlearned: systems of which no run learned, which are not tested: of two equal systems of which half of all runs
            learn, all three runs of one may fail by chance. With verdicts on such pairs, 13 of 100 comparisons of two
            equal systems had a false one, and 33 of three. How many runs learn is tested by itself.
        has_seeds: False to test single runs, whose verdicts and intervals say nothing about other seeds.

    Reference:
        Dunnett 1955, "A multiple comparison procedure for comparing several treatments with a control", Journal of the
        American Statistical Association 50, 1096-1121, for testing only against one system. Differs: K - 1 pairs are
        corrected as all K(K - 1)/2 are, without the correlation of pairs that share a system, and without assuming
        equal variances. Of eight systems over five seeds, this found one that is better by two standard deviations
        in 38 of 100 simulations, all pairs in 21, and scipy.stats.dunnett, with equal variances, in 67.
    """

    def __init__(
        self,
        estimates: Mapping[Pair, Estimate],
        values: Values,
        level: float,
        only_with: str | None,
        unlearned: Collection[str] = (),
        has_seeds: bool = True,
    ) -> None:
        self.estimates, self.alpha, self.unlearned = dict(estimates), 1 - level, {*unlearned}
        # one seed says nothing about other seeds: no test
        several = [
            pair
            for pair, estimate in self.estimates.items()
            if (estimate.num_seeds > 1 or not has_seeds) and not self.unlearned & {*pair}
        ]
        systems, seeds = largest_block({name: group for name, group in values.items() if name not in self.unlearned})
        self.block = {name: np.array([values[name][seed] for seed in seeds]) for name in systems}
        self.pooled = pooled_variance(np.stack([*self.block.values()])) if systems else None
        if self.pooled is not None:
            within = [pair for pair in several if {*pair} <= {*systems}]
            together = moderated([self.estimates[pair] for pair in within], self.pooled)
            self.estimates |= dict(zip(within, together, strict=True))
        tested = [pair for pair in several if only_with is None or only_with in pair]
        self.has_seeds = has_seeds
        self.tested = {pair: place for place, pair in enumerate(tested)}
        self.together = simultaneous([self.estimates[pair] for pair in tested], self.alpha) if tested else None

    def pairs(self) -> list[SeedContrast]:
        """Return all pairs that are compared, each once, the better system first; the largest difference first."""
        pairs = (pair if estimate.mean <= 0 else pair[::-1] for pair, estimate in self.estimates.items())
        return sorted((contrast for pair in pairs if (contrast := self.contrast(*pair))), key=lambda item: item.value)

    def contrast(self, system: str, other: str) -> SeedContrast | None:
        """Return the difference of two systems; None if they are not compared."""
        reverse = (other, system) in self.estimates
        pair = (other, system) if reverse else (system, other)
        if pair not in self.estimates:
            return None
        estimate, place = self.estimates[pair], self.tested.get(pair)
        mean, half = float(estimate.mean), float(estimate.half_width(self.alpha))
        low, high, adjusted = mean - half, mean + half, None
        verdict: Verdict = "one seed: not compared"
        if self.unlearned & {*pair}:
            verdict, low, high = "none learned: not compared", -np.inf, np.inf
        elif place is None and (estimate.num_seeds > 1 or not self.has_seeds):
            verdict, low, high = "not tested", -np.inf, np.inf
        if self.together is not None and place is not None:
            fields = self.together.low, self.together.high, self.together.adjusted
            low, high, adjusted = (float(field[place]) for field in fields)
            better: Verdict = "better" if (mean > 0) == reverse else "worse"
            verdict = "cannot distinguish" if adjusted > self.alpha else better
        if reverse:
            # 0 - x, because -x would print the difference of equal systems as -0.00
            mean, low, high = 0 - mean, 0 - high, 0 - low
        return SeedContrast(system, other, estimate.num_seeds, mean, low, high, adjusted, verdict)


class SeedDifferences(PairTests):
    """Differences in a number that each run has, such as a time.

    Seeds are the only population: the development sets are those that all runs were validated on.

    Args:
        values: by system and seed; smaller is better.
        level: of the intervals and verdicts.
        resolution: of the values; what differs by less may be equal.
        unknown: systems that are not compared with each other.
        only_with: test only pairs with this system; None: all pairs.
        unlearned: systems of which no run learned.
    """

    def __init__(
        self,
        values: Values,
        level: float,
        resolution: float,
        unknown: Collection[str] = (),
        only_with: str | None = None,
        unlearned: Collection[str] = (),
    ) -> None:
        estimates = {}
        for pair in itertools.combinations(values, 2):
            seeds = sorted(set(values[pair[0]]) & set(values[pair[1]]))
            if seeds and not set(pair) <= set(unknown):
                first, second = (np.array([values[name][seed] for seed in seeds]) for name in pair)
                estimates[pair] = paired_estimate(first - second, resolution)
        super().__init__(estimates, values, level, only_with, unlearned)


class SetDifferences(PairTests):
    """Differences in the WER on a test set.

    Args:
        counts: errors of all systems.
        level: of the intervals and verdicts.
        only_with: test only pairs with this system; None: all pairs.
        unlearned: systems of which no run learned.
        has_seeds: False to test single runs.
    """

    def __init__(
        self,
        counts: SetCounts,
        level: float,
        only_with: str | None = None,
        unlearned: Collection[str] = (),
        has_seeds: bool = True,
    ) -> None:
        self.counts = counts
        estimates = {}
        for pair in itertools.combinations(counts.errors, 2):
            if seeds := counts.seeds(*pair):
                # the same seeds and units for both: what is hard for both systems cancels out
                first, second = (counts.matrix(name, seeds) for name in pair)
                estimates[pair] = estimate(first - second, counts.words)
        values = {
            name: dict(zip(seeds, counts.wers(name, seeds), strict=True)) for name, seeds in counts.errors.items()
        }
        super().__init__(estimates, values, level, only_with, unlearned, has_seeds)
        self.omnibus = omnibus(self.block) if len(self.block) > 2 else None

    def differences(self) -> list[Difference]:
        """Return ``pairs`` with what is known of their WERs."""
        return [difference for pair in self.pairs() if (difference := self.difference(pair.system, pair.other))]

    def difference(self, system: str, other: str) -> Difference | None:
        """Return the difference of two systems; None if they have no seed in common."""
        contrast = self.contrast(system, other)
        if contrast is None:
            return None
        place = self.tested.get((system, other), self.tested.get((other, system)))
        return Difference(
            system=system,
            other=other,
            num_seeds=contrast.num_seeds,
            mean=contrast.value,
            low=contrast.low,
            high=contrast.high,
            probability_of_improvement=self._probability(system, other) if contrast.num_seeds > 1 else None,
            p_value=None if self.together is None or place is None else float(self.together.p_values[place]),
            p_adjusted=contrast.p_adjusted,
            verdict=contrast.verdict,
        )

    def power(self, best: str) -> Power | None:
        """Return what the comparison can find, and how many seeds would distinguish the nearest system from the best.

        The variance over seeds is the typical one of the systems and seeds of ``largest_block``, its range that of a χ²
        distribution with the degrees of freedom of their mean, which is too narrow if they vary differently; None if
        there are none, or if no pair is tested.
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
        open_ones = [pair for pair in differences if pair is not None and pair.verdict == "cannot distinguish"]
        nearest = min(open_ones, key=lambda pair: abs(pair.mean), default=None)
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
        wers, other_wers = (np.array(self.counts.wers(name, seeds)) for name in (system, other))
        below, same = wers[:, None] < other_wers, wers[:, None] == other_wers
        return float((below + 0.5 * same).mean())


def paired_estimate(differences: Array, resolution: float) -> Estimate:
    """Return the mean of differences (R, S), whose variance over seeds is at least that of rounding.

    One seed says nothing about others: its interval is infinite.
    """
    num_seeds = differences.shape[-1]
    spread = differences.var(-1, ddof=1) if num_seeds > 1 else np.zeros(differences.shape[:-1])
    spread = np.maximum(spread, resolution**2 / 12)
    mean = differences.mean(-1)
    test_variance = np.full_like(mean, 0 if num_seeds > 1 else np.inf)
    return Estimate(mean, spread / num_seeds, test_variance, num_seeds, num_seeds - 1, np.inf, np.inf)
