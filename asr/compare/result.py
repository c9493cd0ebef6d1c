"""The result of a comparison; ``comparison.json`` holds all but the runs' curves and errors per utterance.

Rates are fractions; those of characters are CERs, also in a field called ``wer``. A list of pairs has each pair once,
the better system first; all verdicts and intervals of its tested pairs hold together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from asr.compare.inputs.runs import Cost, Run
from asr.compare.inputs.tuning import Tuning
from asr.evaluation.wer import RATE_NAMES, Unit

Verdict = Literal[
    "better", "worse", "cannot distinguish", "one seed: not compared", "none learned: not compared", "not tested"
]
Scope = Literal["seeds and speakers", "seeds and utterances", "this run only"]
Axis = Literal["updates", "seconds"]


@dataclass(frozen=True)
class Difference:
    """The WER of a system minus that of another, on the seeds that both have.

    Attributes:
        num_seeds: seeds in common.
        mean: difference of the mean WERs; negative if the system is better.
        probability_of_improvement: that a run of this system has a lower WER than a run of the other; None for a single
            seed.
        p_value: two-sided, of the hypothesis that the systems do not differ; None for a single seed.
        p_adjusted: corrected for all tested pairs of systems on the test set, see ``simultaneous``.
        matched_pairs_p: of single runs, see ``matched_pairs``; not corrected; None if texts are unknown.
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
    matched_pairs_p: float | None = None


@dataclass(frozen=True)
class SeedContrast:
    """A system compared with another by a number that each run has, on the seeds that both have; smaller is better.

    Attributes:
        num_seeds: seeds in common.
        value: mean difference, or ratio of geometric means.
        p_adjusted: corrected for all tested pairs, see ``simultaneous``; None if this one was not tested.
    """

    system: str
    other: str
    num_seeds: int
    value: float
    low: float
    high: float
    p_adjusted: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Reliability:
    """How many runs of a system learned, see ``SetErrors.has_learned``.

    Attributes:
        num_learned: runs that did.
        num_runs: runs that finished, or failed by themselves; the latter have not learned.
        p_adjusted: of the hypothesis that it is as reliable as the most reliable system, corrected for all pairs; None
            for that one.
    """

    num_learned: int
    num_runs: int
    p_adjusted: float | None


@dataclass(frozen=True)
class Row:
    """One system on one test set.

    Attributes:
        seeds: of its runs that learned, or of all if none did.
        wers: by seed, in the order of ``seeds``.
        wer_mean_of_all: over all runs that finished.
        wer_sd: standard deviation (n - 1); None for one seed.
        low: lower end of the interval of the mean; infinite if it is unknown.
        high: upper end; that of the best system is corrected for its being chosen as the lowest.
        scope: what the interval covers.
        to_best: difference from the best system; None for the best itself.
        to_baseline: difference from the baseline; None for the baseline itself, or without a baseline.
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

    @property
    def leaves_out_runs(self) -> bool:
        """Whether some runs have learned, and others, which failed or learned nothing, are left out."""
        return 0 < self.reliability.num_learned < self.reliability.num_runs

    @property
    def leaves_out_results(self) -> bool:
        """Whether any of the runs that are left out has finished, so that the mean of all is another one."""
        return abs(self.wer_mean - self.wer_mean_of_all) > 1e-9


@dataclass(frozen=True)
class Omnibus:
    """Whether any systems differ over seeds, on this very test set; see ``omnibus``.

    Attributes:
        systems: that were tested, see ``largest_block``.
        num_seeds: of each, the same ones.
        friedman_p: of Friedman's test on ranks, see ``friedman``; it decides.
        f_p: of the two-way F-test, which assumes equal variances of the systems.
    """

    systems: tuple[str, ...]
    num_seeds: int
    friedman_p: float
    f_p: float


@dataclass(frozen=True)
class Power:
    """What the comparison can find, from the spread over seeds of all systems together.

    Attributes:
        detectable: true difference of two systems that is significant in 80 of 100 such comparisons.
        low: the same for the lower end of the interval of the spread.
        high: for the upper end.
        nearest: the system that is nearest to the best and cannot be distinguished from it; None if there is none.
        seeds_needed: seeds with which these two would differ significantly in 80 of 100 comparisons, if their true
            difference is the measured one; None if more than 100, or without such a system.
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
        num_speakers: None if unknown.
        effective_units: speakers, or utterances, of one size that would decide as evenly as these; see
            ``effective_number``.
        rows: best mean WER first.
        pairs: of any two systems that share a seed; the largest difference first.
        num_candidates: systems that the best was chosen from: those with several seeds, if there are any.
        baseline: name of the system that others are compared with; None if it has no run on this set.
        omnibus: of systems that share seeds; None for fewer than three with at least two.
        power: None if no pair was tested, or no run learned.
        gone: systems of which all runs failed; they have no row.
        num_runs: runs that finished.
        num_without_texts: of these, runs of which only counts of errors are known, and no test of their hypotheses.
        has_seeds: False for single runs, which are compared over speakers, or utterances, alone.
        subsets: by column, the same comparison of the utterances with each of its values, which are their names.
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
    num_runs: int
    num_without_texts: int
    has_seeds: bool = True
    subsets: Mapping[str, Sequence[SetComparison]] = field(default_factory=dict)

    @property
    def rate_name(self) -> str:
        """WER or CER."""
        return RATE_NAMES[self.unit]


@dataclass(frozen=True)
class Target:
    """A WER on the development sets that systems are to reach.

    Attributes:
        is_fixed: whether the runs' own configs name it, so that nobody chose it after seeing them.
    """

    wer: float
    is_fixed: bool


@dataclass(frozen=True)
class TimeRow:
    """When the runs of a system first had the target WER.

    Attributes:
        num_reached: runs that had it within the budget.
        num_runs: all runs; those that never finished have not reached it.
        mean: geometric mean of the times; a run that did not reach the target counts with the whole budget.
        contrast: ratio to the reference; None for the reference itself, and if neither ever reached the target.
    """

    system: str
    num_reached: int
    num_runs: int
    mean: float
    contrast: SeedContrast | None


@dataclass(frozen=True)
class TimesToTarget:
    """When all systems reached the target.

    Attributes:
        budget: that all runs had; a run that has not reached the target by then counts with it.
        reference: system that the others are compared with.
        rows: shortest mean first.
        pairs: ratios.
    """

    axis: Axis
    budget: float
    reference: str
    rows: Sequence[TimeRow]
    pairs: Sequence[SeedContrast]


@dataclass(frozen=True)
class ProgressRow:
    """WER of a system on the development sets during training.

    Attributes:
        num_runs: runs that learned, or all if none did.
        wer_mean: at the given time.
        wer_sd: over seeds; None for one.
        area: mean WER over the updates of a run, averaged over seeds.
        area_sd: over seeds; None for one.
        contrast: difference of the WERs from the reference; None for the reference itself, or without common seeds.
    """

    system: str
    num_runs: int
    wer_mean: float
    wer_sd: float | None
    area: float
    area_sd: float | None
    contrast: SeedContrast | None


@dataclass(frozen=True)
class EqualTime:
    """All systems after the same time of training.

    Attributes:
        seconds: of training, with the optimizer's own and without validations.
        num_earlier: runs whose last validation was earlier; they count with that WER.
        reference: system that the others are compared with.
        rows: lowest WER first.
        pairs: differences of any two systems that share a seed.
    """

    seconds: float
    num_earlier: int
    reference: str
    rows: Sequence[ProgressRow]
    pairs: Sequence[SeedContrast]


@dataclass(frozen=True)
class Comparison:
    """The whole result.

    Attributes:
        title: for example the name of the sweep.
        sets: one per test set.
        runs: at least one; all are scored in one unit.
        target: None: not asked for.
        times: to the target, in updates and in seconds, as far as the runs logged them.
        equal_time: None if the runs logged no times.
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
        """WER or CER."""
        return RATE_NAMES[self.unit]

    @property
    def has_seeds(self) -> bool:
        """False for single runs."""
        return all(test_set.has_seeds for test_set in self.sets)

    @property
    def is_of_our_runs(self) -> bool:
        """False for results of which nothing is known of their training."""
        return any(run.cost != Cost() or run.curves for run in self.runs)

    @property
    def systems(self) -> list[str]:
        """Names of all systems: by rank on the first test set, then those that it lacks."""
        ranked = [row.system for test_set in self.sets for row in test_set.rows]
        return list(dict.fromkeys([*ranked, *(run.system for run in self.runs)]))

    def runs_of(self, system: str) -> list[Run]:
        """Return the runs of one system."""
        return [run for run in self.runs if run.system == system]
