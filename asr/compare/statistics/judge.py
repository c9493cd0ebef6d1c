"""The two questions of a comparison: which system may be the best, and which differ from the baseline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from asr.compare.result import Contrast, Scale, Verdict
from asr.compare.statistics.contrasts import Contrasts
from asr.compare.statistics.estimate import Estimate
from asr.compare.statistics.multiple_testing import Pair, decide, may_be_best
from asr.compare.statistics.power import detectable, seeds_to_find

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Judge:
    """Answers the two questions on a number that each run has, each at its own level.

    Args:
        values: by system and seed, of which smaller is better; logarithms if ``scale`` is ``ratio``.
        resolution: by system: values that differ by less may be equal.
        alpha: probability that any verdict on one question is false.
        scale: of the contrasts: ratios of geometric means, or differences.
        moves: (U,) by system and seed, how much a value moves without one unit of the test set; None if seeds are the
            only population.
        effective_units: of the test set.
        has_seeds: False to judge single runs, whose verdicts say nothing about other seeds.
        unknown: systems that are not compared with each other.
    """

    values: Mapping[str, Mapping[int, float]]
    resolution: Mapping[str, float]
    alpha: float
    scale: Scale
    moves: Mapping[str, Mapping[int, Array]] | None = None
    effective_units: float = np.inf
    has_seeds: bool = True
    unknown: Collection[str] = ()
    _blocks: dict[tuple[int, ...], tuple[list[str], Contrasts]] = field(default_factory=dict, init=False, repr=False)

    def seeds(self, system: str, other: str) -> tuple[int, ...]:
        """Return the seeds that both systems have."""
        return tuple(sorted({*self.values[system]} & {*self.values[other]}))

    def estimate(self, system: str, focal: str) -> Estimate | None:
        """Return the value of a system minus that of the focal one, on the seeds of both; None if they have none.

        How much seeds vary is learned from all systems that have these seeds.
        """
        seeds = self.seeds(system, focal)
        if not seeds or {system, focal} <= {*self.unknown}:
            return None
        if seeds not in self._blocks:
            names = [name for name, group in self.values.items() if {*group} >= {*seeds}]
            moves = None
            if self.moves is not None:
                moves = np.array([[self.moves[name][seed] for seed in seeds] for name in names])
            values = np.array([[self.values[name][seed] for seed in seeds] for name in names])
            resolution = np.array([self.resolution[name] for name in names])
            self._blocks[seeds] = names, Contrasts(values, resolution, moves, self.effective_units)
        names, contrasts = self._blocks[seeds]
        return contrasts.estimate(names.index(system), names.index(focal))

    def may_be_best(self) -> set[str]:
        """Return the systems that may be the best; one that is not tested against any other is among them."""
        against = {
            name: [estimate.reversed() for other in self.values if (estimate := self._tested(other, name)) is not None]
            for name in self.values
        }
        return {name for name, is_in in may_be_best(against, self.alpha).items() if is_in}

    def from_baseline(self, baseline: str) -> dict[str, Contrast]:
        """Return how each other system differs from the baseline; without those that share no seed with it."""
        pairs = {(name, baseline): self.estimate(name, baseline) for name in self.values if name != baseline}
        return {system: contrast for (system, _), contrast in self._contrasts(pairs).items()}

    def all_pairs(self) -> list[Contrast]:
        """Return all pairs, a further question with a level of its own; the better system first, the clearest first.

        Here no system is in more differences than others: of both estimates, the less certain one counts.
        """
        estimates: dict[Pair, Estimate | None] = {}
        for pair in itertools.combinations(self.values, 2):
            either = self.estimate(*pair), self.estimate(*pair[::-1])
            if either[0] is not None and either[1] is not None:
                wider = max(either[0], either[1].reversed(), key=lambda one: float(one.half_width(self.alpha)))
                estimates[pair if wider.mean <= 0 else pair[::-1]] = wider if wider.mean <= 0 else wider.reversed()
        contrasts = self._contrasts(estimates).values()
        return sorted(contrasts, key=lambda contrast: math.inf if contrast.p_value is None else contrast.p_value)

    def _tested(self, system: str, focal: str) -> Estimate | None:
        estimate = None if system == focal else self.estimate(system, focal)
        return estimate if estimate is not None and self._can_be_tested(estimate) else None

    def _can_be_tested(self, estimate: Estimate) -> bool:
        """Return whether there are several seeds: one says nothing about others."""
        return estimate.num_seeds > 1 or not self.has_seeds

    def _contrasts(self, estimates: Mapping[Pair, Estimate | None]) -> dict[Pair, Contrast]:
        """Return verdicts on pairs, corrected for all of them that can be tested."""
        known = {pair: estimate for pair, estimate in estimates.items() if estimate is not None}
        tested = [pair for pair, estimate in known.items() if self._can_be_tested(estimate)]
        contrasts = {
            pair: Contrast(
                *pair, estimate.num_seeds, self._shown(estimate.mean), self._shown(-np.inf), self._shown(np.inf)
            )
            for pair, estimate in known.items()
        }
        if not tested:
            return contrasts
        decisions, alpha = decide([known[pair] for pair in tested], self.alpha), self.alpha / len(tested)
        for place, pair in enumerate(tested):
            estimate, adjusted = known[pair], float(decisions.adjusted[place])
            better: Verdict = "better" if estimate.mean < 0 else "worse"
            is_open = adjusted > self.alpha
            contrasts[pair] = replace(
                contrasts[pair],
                low=self._shown(decisions.low[place]),
                high=self._shown(decisions.high[place]),
                p_value=float(decisions.p_values[place]),
                p_adjusted=adjusted,
                verdict="cannot distinguish" if is_open else better,
                detectable=self._shown(-detectable(estimate, alpha)),
                seeds_needed=seeds_to_find(estimate, alpha) if is_open and self.has_seeds else None,
            )
        return contrasts

    def _shown(self, difference: float | Array) -> float:
        """Return a difference on the scale of the contrasts: a ratio of geometric means, or points."""
        with np.errstate(over="ignore"):  # an end that is not known is infinite
            # 0 + x, because -0.0 would be printed
            return float(np.exp(difference)) if self.scale == "ratio" else 0.0 + float(difference)
