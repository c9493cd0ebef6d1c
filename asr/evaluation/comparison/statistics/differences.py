"""Differences between all pairs of systems on one test set, corrected for the number of pairs."""

from __future__ import annotations

import itertools

import numpy as np

from asr.evaluation.comparison.result import Difference, Verdict
from asr.evaluation.comparison.statistics.counts import SetCounts
from asr.evaluation.comparison.statistics.estimate import Estimate, estimate
from asr.evaluation.comparison.statistics.moderation import moderated
from asr.evaluation.comparison.statistics.multiple_testing import Pair, holm


class Differences:
    """Differences of every pair of systems; all their verdicts together are one family of hypotheses.

    If no system differs from any other, any verdict claims a difference with a probability of at most 1 - level.

    Args:
        counts: errors of all systems.
        level: of the intervals and verdicts.
    """

    def __init__(self, counts: SetCounts, level: float) -> None:
        self.counts, self.alpha = counts, 1 - level
        self.estimates: dict[Pair, Estimate] = {}
        for pair in itertools.combinations(counts.errors, 2):
            if seeds := counts.seeds(*pair):
                # the same seeds and units for both: what is hard for both systems cancels out
                first, second = (counts.matrix(name, seeds) for name in pair)
                self.estimates[pair] = estimate(first - second, counts.words)
        # one seed says nothing about other seeds: no test
        tested = [pair for pair, found in self.estimates.items() if found.num_seeds > 1]
        systems = sorted({name for pair in tested for name in pair})
        common = counts.seeds(*systems) if systems else []
        if len(common) > 1:
            wers = np.array([counts.wers(name, common) for name in systems])
            together = moderated([self.estimates[pair] for pair in tested], wers)
            self.estimates |= dict(zip(tested, together, strict=True))
        p_values = np.array([float(self.estimates[pair].p_value()) for pair in tested])
        self.p_values = dict(zip(tested, p_values.tolist(), strict=True))
        self.adjusted = dict(zip(tested, holm(p_values).tolist(), strict=True))

    def difference(self, system: str, other: str) -> Difference | None:
        """Return the difference of two systems; None if they have no seed in common."""
        reverse = (other, system) in self.estimates
        pair = (other, system) if reverse else (system, other)
        if pair not in self.estimates:
            return None
        found = self.estimates[pair]
        # 0 - x, because -x would print the difference of equal systems as -0.00
        mean, half = float(0 - found.mean if reverse else found.mean), float(found.half_width(self.alpha))
        tested = pair in self.adjusted
        verdict: Verdict = "better" if mean < 0 else "worse"
        if not tested:
            verdict = "one seed: not compared"
        elif self.adjusted[pair] > self.alpha:
            verdict = "cannot distinguish"
        return Difference(
            other=other,
            num_seeds=found.num_seeds,
            mean=mean,
            low=mean - half,
            high=mean + half,
            probability_of_improvement=self._probability(system, other) if tested else None,
            p_value=self.p_values[pair] if tested else None,
            p_adjusted=self.adjusted[pair] if tested else None,
            smallest_detectable=float(found.smallest_detectable(self.alpha / len(self.adjusted))) if tested else None,
            verdict=verdict,
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
