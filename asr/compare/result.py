"""The result of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from asr.compare.inputs.runs import Run
from asr.compare.inputs.tuning import Tuning
from asr.evaluation.wer import RATE_NAMES, Unit

if TYPE_CHECKING:
    from asr.compare.speed import EqualTime, Target, TimesToTarget

Verdict = Literal["better", "worse", "cannot distinguish", "one seed: not compared", "not tested"]
Scope = Literal["seeds and speakers", "seeds and utterances", "this run only"]


@dataclass(frozen=True)
class Difference:
    """The WER of a system minus that of another, on the seeds that both have.

    Attributes:
        system: its name.
        other: name of the other system.
        num_seeds: seeds in common.
        mean: difference of the mean WERs, a fraction; negative if the system is better.
        low: lower end of its interval; the intervals of all tested pairs of the test set hold together.
        high: upper end.
        probability_of_improvement: that a run of this system has a lower WER than a run of the other; None for a single
            seed.
        p_value: two-sided, of the hypothesis that the systems do not differ; None for a single seed.
        p_adjusted: corrected for all tested pairs of systems on the test set, see ``simultaneous``.
        verdict: in words.
    """

    system: str
    other: str
    num_seeds: int
    mean: float
    low: float
    high: float
    probability_of_improvement: float | None
    p_value: float | None
    p_adjusted: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Reliability:
    """How many runs of a system came below a WER of 100 %.

    Attributes:
        num_learned: that did.
        num_runs: that finished, or failed by themselves; these have not learned.
        p_adjusted: of the hypothesis that it is as reliable as the most reliable system, corrected for all pairs; None
            for that one.
    """

    num_learned: int
    num_runs: int
    p_adjusted: float | None


@dataclass(frozen=True)
class Row:
    """One system on one test set; rates are fractions.

    Attributes:
        system: its name.
        seeds: of its runs that learned, or of all if none did.
        wers: WER by seed, in the order of ``seeds``.
        wer_mean: their mean.
        wer_mean_of_all: the same over all runs that finished.
        reliability: how many runs learned.
        wer_sd: their standard deviation (n - 1); None for one seed.
        low: lower end of the interval of the mean.
        high: upper end; that of the best system is corrected for its being chosen as the lowest.
        scope: what the interval covers.
        to_best: difference to the best system; None for the best itself.
        to_baseline: difference to the baseline; None for the baseline itself, or without a baseline.
    """

    system: str
    seeds: tuple[int, ...]
    wers: tuple[float, ...]
    wer_mean: float
    wer_mean_of_all: float
    reliability: Reliability
    wer_sd: float | None
    low: float
    high: float
    scope: Scope
    to_best: Difference | None
    to_baseline: Difference | None


@dataclass(frozen=True)
class Omnibus:
    """Whether any systems differ over seeds, on this very test set; see ``omnibus``.

    Attributes:
        systems: that were tested, see ``largest_block``.
        num_seeds: of each, the same ones.
        friedman_p: of Friedman's test on ranks, see ``friedman``; it decides.
        f_p: of the two-way F-test, which takes the variances of the systems for equal.
    """

    systems: tuple[str, ...]
    num_seeds: int
    friedman_p: float
    f_p: float


@dataclass(frozen=True)
class Power:
    """What the comparison can find, from the spread over seeds of all systems together.

    Attributes:
        detectable: true difference of two systems that 80 of 100 such comparisons would tell apart.
        low: the same for the lower end of the interval of the spread.
        high: for the upper end.
        nearest: the system that is nearest to the best and cannot be distinguished from it; None without such.
        seeds_needed: seeds that would tell these two apart in 80 of 100 comparisons, if their true difference is the
            one that was measured; None if more than 100, or without such a system.
    """

    detectable: float
    low: float
    high: float
    nearest: str | None
    seeds_needed: int | None


@dataclass(frozen=True)
class SetComparison:
    """All systems on one test set.

    Attributes:
        name: of the set.
        unit: what its error rates count; those of characters are CERs, also where a field is called ``wer``.
        num_utterances: in the set.
        num_speakers: in the set; None if unknown.
        effective_units: speakers, or utterances, of one size that would decide as evenly as these; see
            ``effective_number``.
        rows: best mean WER first.
        pairs: differences of any two systems that share a seed, each pair once, the better system first.
        num_candidates: systems that the best was chosen from: those with several seeds, if there are any.
        baseline: name of the system that others are compared with; None if it has no run on this set.
        omnibus: of systems that share seeds; None for fewer than three with at least two.
        power: None if no pair was tested.
        gone: systems of which all runs failed; they have no row.
    """

    name: str
    unit: Unit
    num_utterances: int
    num_speakers: int | None
    effective_units: float
    rows: Sequence[Row]
    pairs: Sequence[Difference]
    num_candidates: int
    baseline: str | None
    omnibus: Omnibus | None
    power: Power | None
    gone: Mapping[str, Reliability]

    @property
    def rate_name(self) -> str:
        """What its error rates are called."""
        return RATE_NAMES[self.unit]


@dataclass(frozen=True)
class Comparison:
    """The whole result.

    Attributes:
        title: for example the name of the sweep.
        sets: one per test set.
        runs: all that were compared, at least one; all are scored in one unit.
        target: WER that systems were to reach on the development sets; None: not asked for.
        times: when they did, in updates and in seconds, as far as the runs logged them.
        equal_time: WERs on the development sets after the same time; None if the runs logged no times.
        level: of the intervals, for example 0.95.
        problems: messages on what could not be compared.
        notes: that must be shown with the results, for example "synthetic speech".
        tunings: trials that chose the systems' settings.
    """

    title: str
    sets: Sequence[SetComparison]
    runs: Sequence[Run]
    target: Target | None
    times: Sequence[TimesToTarget]
    equal_time: EqualTime | None
    level: float
    problems: Sequence[str]
    notes: Sequence[str]
    tunings: Sequence[Tuning] = ()

    @property
    def unit(self) -> Unit:
        """What all error rates count."""
        return self.runs[0].unit

    @property
    def rate_name(self) -> str:
        """What all error rates are called."""
        return RATE_NAMES[self.unit]

    @property
    def systems(self) -> list[str]:
        """Names of all systems: by rank on the first test set, then those that it lacks."""
        ranked = [row.system for found in self.sets for row in found.rows]
        return list(dict.fromkeys([*ranked, *(run.system for run in self.runs)]))

    def runs_of(self, system: str) -> list[Run]:
        """Return the runs of one system."""
        return [run for run in self.runs if run.system == system]
