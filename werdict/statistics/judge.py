"""The verdicts: which systems may be best, which differ from the baseline, and what could have been found."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from werdict.result import Contrast, Reliability, Scale, Verdict
from werdict.runs import Run
from werdict.statistics.contrasts import Contrasts, Pair, decide, holm, may_be_best
from werdict.statistics.estimate import Estimate, effective_number

FOUND = 0.8  # customary
DRAWS = 20_000  # the result is within 1 %
MAX_SEEDS = 100


def detectable(estimate: Estimate, alpha: float) -> float:
    """Return the true difference that is significant with a probability of 80 %, if the noise is as it was measured.

    A difference is significant if it exceeds the half width h of ``Estimate``, whose variances are estimates. So the
    80 % quantile of h + σ z, with z normal and h from variances that are drawn anew, is the difference asked for: if
    only the seeds vary it is that of Student's noncentral t. The sum of two quantiles of t (Bloom 1995, Evaluation
    Review 19, 547-556), which takes h for known, is found in 77 of 100 with 3 seeds.

    Args:
        estimate: of one difference.
        alpha: level at which it is significant.
    """
    rng, estimate = np.random.default_rng(0), _without_luck(estimate)

    def drawn(variance: float, freedom: float) -> NDArray[np.float64]:
        if not variance or not np.isfinite(freedom):
            return np.full(DRAWS, variance)
        return variance * rng.chisquare(freedom, DRAWS) / freedom

    seed, test = float(estimate.seed_variance), float(estimate.test_variance)
    again = replace(
        estimate,
        mean=np.zeros(DRAWS),
        seed_variance=drawn(seed, float(estimate.seed_freedom)),
        test_variance=drawn(test, estimate.effective_units - 1),
    )
    needed = again.half_width(alpha) + np.sqrt(seed + test) * rng.normal(size=DRAWS)
    return float(np.quantile(needed, FOUND, method="higher"))


def seeds_to_find(estimate: Estimate, alpha: float) -> int | None:
    """Return how many seeds, more than there are, find the measured difference; None if more than 100."""
    have, estimate = estimate.num_seeds, _without_luck(estimate)

    def found_with(num_seeds: int) -> float:
        more = num_seeds / have
        freedom = estimate.seed_freedom * (num_seeds - 1) / (have - 1)
        seed_variance = estimate.seed_variance / more
        return -detectable(
            replace(estimate, num_seeds=num_seeds, seed_variance=seed_variance, seed_freedom=freedom), alpha
        )

    numbers = range(have + 1, MAX_SEEDS + 1)
    at = bisect.bisect_left(numbers, -abs(float(estimate.mean)), key=found_with)
    return numbers[at] if at < len(numbers) else None


def _without_luck(estimate: Estimate) -> Estimate:
    """Return an estimate whose noise is known as well as it usually is, however much was borrowed by chance.

    How much is borrowed from other systems differs from one comparison to the next, and so do Welch's degrees of
    freedom: taken is the middle of all that is lent, and of the systems' own noise, these halfway to the fewest
    possible. With all of it, what is said to be found in 80 of 100 was found in 72 with 3 seeds of eight systems.
    """
    if estimate.own is None:
        return estimate
    alone = (estimate.own.seed_freedom + estimate.num_seeds - 1) / 2
    return replace(estimate, seed_freedom=(estimate.seed_freedom + alone) / 2, own=None)


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


Counts = NDArray[np.int64]
LEAST_ERRORS = 0.5  # that a rate without any error counts as in a ratio


@dataclass(frozen=True)
class SetCounts:
    """Word errors of all systems on the same utterances; U units as in ``estimate``.

    Attributes:
        errors: (U,) by system and seed.
        words: (U,) in the references.
        unit: what one unit is.
        names: (U,) of the units.
    """

    errors: Mapping[str, Mapping[int, Counts]]
    words: Counts
    unit: Literal["speaker", "utterance"]
    names: Sequence[str] = ()

    def matrix(self, system: str, seeds: Iterable[int]) -> Counts:
        """Return the errors (S, U) of a system."""
        return np.stack([self.errors[system][seed] for seed in seeds])

    def wers(self, system: str, seeds: Iterable[int]) -> list[float]:
        """Return the WER of each seed."""
        return [float(self.errors[system][seed].sum() / self.words.sum()) for seed in seeds]

    @cached_property
    def effective_units(self) -> float:
        """How many units of one size would decide a WER as evenly; see ``effective_number``."""
        return effective_number(self.words)

    def geometric_mean(self, system: str) -> float:
        """Return the geometric mean of the WERs, of rates as in ``on_scale``."""
        values, *_ = on_scale(self.matrix(system, self.errors[system]), self.words, "ratio")
        return float(np.exp(values.mean()))

    def judge(self, alpha: float, scale: Scale, has_seeds: bool = True, is_fixed: bool = False) -> Judge:
        """Return the judge of these error rates, on other test sets too unless this one is fixed."""
        values: dict[str, dict[int, float]] = {}
        moves: dict[str, dict[int, Array]] = {}
        resolution = {}
        for system, by_seed in self.errors.items():
            seeds = sorted(by_seed)
            matrix = self.matrix(system, seeds)
            rates, without, grain = on_scale(matrix, self.words, scale)
            values[system] = dict(zip(seeds, rates.tolist(), strict=True))
            moves[system] = dict(zip(seeds, without, strict=True))
            resolution[system] = float(grain)
        return Judge(values, resolution, alpha, scale, None if is_fixed else moves, self.effective_units, has_seeds)


def on_scale(errors: Counts, words: Counts, scale: Scale) -> tuple[Array, Array, Array]:
    """Return error rates as they are compared: as logarithms, for ratios, or as they are.

    Ratios are those of geometric means, of rates between half an error and 100 %: a run that fails is as bad as one
    that recognizes nothing, and one without errors has a logarithm.

    Args:
        errors: (..., S, U).
        words: (U,).
        scale: of the contrasts.

    Returns:
        Values (..., S); by how much each moves without one unit (..., S, U), for the jackknife; and what one error more
        changes in a typical run of each system (...).
    """
    total = int(words.sum())
    num = errors.sum(-1)
    if scale == "points":
        values, without = num / total, (num[..., None] - errors) / (total - words)
        return values, without - values[..., None], np.full(num.shape[:-1], 1 / total)
    clipped = np.clip(num, LEAST_ERRORS, total)
    without = np.clip(num[..., None] - errors, LEAST_ERRORS, total - words) / (total - words)
    values = np.log(clipped / total)
    return values, np.log(without) - values[..., None], 1 / clipped.mean(-1)


def count_errors(runs: Sequence[Run], name: str) -> SetCounts:
    """Sum the word errors on a test set by speaker.

    Errors of one speaker depend on each other, so that utterances are not independent units. They are the units all the
    same if a speaker is unknown, if only one has words, and if training data have speakers of the set: then the result
    is about these speakers alone.
    """
    first = runs[0].sets[name]
    speaking = {speaker for speaker, num_words in zip(first.speakers, first.words, strict=True) if num_words}
    by_speaker = all(first.speakers) and len(speaking) > 1 and not first.seen_speakers
    labels = first.speakers if by_speaker else first.ids
    names, units = np.unique(np.array([str(label) for label in labels]), return_inverse=True)

    def summed(counts: Sequence[int]) -> Counts:
        return np.bincount(units, weights=counts).astype(np.int64)

    errors: dict[str, dict[int, Counts]] = defaultdict(dict)
    for run in runs:
        errors[run.system][run.seed] = summed(run.sets[name].errors)
    return SetCounts(errors, summed(first.words), "speaker" if by_speaker else "utterance", names.tolist())
