"""The result of a comparison; ``comparison.json`` holds all but the runs' curves and errors per utterance.

Rates are fractions; those of characters are CERs, also in a field called ``wer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from werdict.runs import Cost, Run, Tuning
from werdict.scoring import RATE_NAMES, Unit

Verdict = Literal["better", "worse", "cannot distinguish", "one seed: not compared"]
Scope = Literal["seeds and speakers", "seeds and utterances", "this run only"]
Axis = Literal["updates", "seconds"]
Scale = Literal["ratio", "points"]


@dataclass(frozen=True)
class Contrast:
    """A system compared with another by a number that each run has, on the seeds that both have; smaller is better.

    Attributes:
        num_seeds: seeds in common.
        value: ratio of geometric means, or difference in points; see ``Comparison.scale``.
        low: lower end of the interval, which holds together with those of the other contrasts of the same question.
        high: upper end.
        p_value: two-sided, of the hypothesis that the systems do not differ; None if they were not tested.
        p_adjusted: corrected for all contrasts of the same question, see ``decide``.
        detectable: what the true value would have to be to be significant in 80 of 100 such comparisons.
        seeds_needed: seeds with which the measured value would be; None if more than 100, or if it is significant.
        points: difference of the mean rates; None for numbers that are no rates.
        matched_pairs_p: of single runs, see ``matched_pairs``; not corrected; None if texts are unknown.
    """

    system: str
    other: str
    num_seeds: int
    value: float
    low: float
    high: float
    p_value: float | None = None
    p_adjusted: float | None = None
    verdict: Verdict = "one seed: not compared"
    detectable: float | None = None
    seeds_needed: int | None = None
    points: float | None = None
    matched_pairs_p: float | None = None


@dataclass(frozen=True)
class Reliability:
    """How many runs of a system learned, see ``SetErrors.has_learned``.

    Attributes:
        num_learned: runs that did.
        num_runs: runs that finished, or failed by themselves; the latter have not learned.
        low: lower end of the interval of the share that learns.
        high: upper end.
        p_adjusted: of the hypothesis that the baseline is as reliable, corrected for all systems; None for itself.
    """

    num_learned: int
    num_runs: int
    low: float
    high: float
    p_adjusted: float | None


@dataclass(frozen=True)
class Row:
    """One system on one test set.

    Attributes:
        seeds: of its runs.
        wers: by seed, in the order of ``seeds``; 1 for a run that failed.
        wer_geomean: geometric mean, of rates between half an error and 100 %.
        wer_sd: standard deviation (n - 1); None for one seed.
        low: lower end of the interval of the mean; infinite if it is unknown.
        high: upper end.
        scope: what the interval covers.
        may_be_best: whether no other system is significantly better.
        to_baseline: contrast with the baseline; None for the baseline itself, or without a common seed.
    """

    system: str
    seeds: tuple[int, ...]
    wers: tuple[float, ...]
    wer_mean: float
    wer_geomean: float
    reliability: Reliability
    wer_sd: float | None
    low: float
    high: float
    scope: Scope
    may_be_best: bool
    to_baseline: Contrast | None


@dataclass(frozen=True)
class SetComparison:
    """All systems on one test set.

    Attributes:
        num_speakers: None if unknown.
        effective_units: speakers, or utterances, of one size that would decide as evenly as these; see
            ``effective_number``.
        seen_speakers: whether training data have speakers of the set: nothing is then said of other speakers.
        rows: lowest geometric mean first.
        baseline: name of the system that others are compared with.
        pairs: all pairs, if that was asked for.
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
    seen_speakers: bool
    rows: Sequence[Row]
    baseline: str
    pairs: Sequence[Contrast]
    num_runs: int
    num_without_texts: int
    has_seeds: bool = True
    subsets: Mapping[str, Sequence[SetComparison]] = field(default_factory=dict)

    @property
    def rate_name(self) -> str:
        """WER or CER."""
        return RATE_NAMES[self.unit]

    @property
    def best(self) -> list[Row]:
        """Systems that may be the best."""
        return [row for row in self.rows if row.may_be_best]


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
        may_be_best: whether no other system is significantly faster.
        contrast: ratio to the reference; None for the reference itself, and if neither ever reached the target.
    """

    system: str
    num_reached: int
    num_runs: int
    mean: float
    may_be_best: bool
    contrast: Contrast | None


@dataclass(frozen=True)
class TimesToTarget:
    """When all systems reached the target.

    Attributes:
        budget: that all runs had; a run that has not reached the target by then counts with it.
        reference: system that the others are compared with.
        rows: shortest mean first.
    """

    axis: Axis
    budget: float
    reference: str
    rows: Sequence[TimeRow]


@dataclass(frozen=True)
class ProgressRow:
    """WER of a system on the development sets during training.

    Attributes:
        num_runs: that were validated.
        wer_mean: at the given time.
        wer_sd: over seeds; None for one.
        area: mean WER over the updates of a run, averaged over seeds.
        area_sd: over seeds; None for one.
        contrast: of the WERs with the reference; None for the reference itself, or without common seeds.
    """

    system: str
    num_runs: int
    wer_mean: float
    wer_sd: float | None
    area: float
    area_sd: float | None
    contrast: Contrast | None


@dataclass(frozen=True)
class EqualTime:
    """All systems after the same time of training.

    Attributes:
        seconds: of training, with the optimizer's own and without validations.
        num_earlier: runs whose last validation was earlier; they count with that WER.
        reference: system that the others are compared with.
        rows: lowest WER first.
    """

    seconds: float
    num_earlier: int
    reference: str
    rows: Sequence[ProgressRow]


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
        level: of each question, for example 0.95.
        scale: of the contrasts: ratios of geometric means, or differences in points.
        looks: planned numbers of seeds after which runs are compared; each look has its share of ``1 - level``.
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
    scale: Scale = "ratio"
    looks: Sequence[int] = ()

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
