"""What a comparison found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from asr.evaluation.comparison.runs import Run

Verdict = Literal["better", "worse", "cannot distinguish", "one seed: not compared"]
Scope = Literal["seeds and speakers", "seeds and utterances", "this run only"]


@dataclass(frozen=True)
class Difference:
    """The WER of a contestant minus that of another, on the seeds that both have.

    Attributes:
        other: name of the other contestant.
        num_seeds: seeds in common.
        mean: difference of the mean WERs, a fraction; below 0 the contestant is better.
        low: lower end of its interval.
        high: upper end.
        probability_of_improvement: that a training of this contestant ends with a lower WER than one of the other;
            None for a single seed.
        p_value: two-sided, of the hypothesis that there is no difference; None for a single seed.
        p_adjusted: after Holm's correction for all comparisons of the table.
        smallest_detectable: difference that would be found with a probability of 80 %.
        verdict: in words.
    """

    other: str
    num_seeds: int
    mean: float
    low: float
    high: float
    probability_of_improvement: float | None
    p_value: float | None
    p_adjusted: float | None
    smallest_detectable: float | None
    verdict: Verdict


@dataclass(frozen=True)
class TimeToTarget:
    """When runs first reached a WER on the development sets.

    Attributes:
        num_reached: runs that did.
        updates: median over all runs, those that did not counted as later than any; None where most did not.
        seconds: the same in seconds of training; None also where they were not logged.
    """

    num_reached: int
    updates: float | None
    seconds: float | None


@dataclass(frozen=True)
class Row:
    """One contestant on one test set; rates are fractions.

    Attributes:
        contestant: its name.
        seeds: of its runs.
        wers: WER by seed, in the order of ``seeds``.
        wer_mean: their mean.
        wer_sd: their standard deviation (n - 1); None for one seed.
        low: lower end of the interval of the mean.
        high: upper end.
        scope: what the interval speaks of.
        to_best: difference to the best contestant; None for the best itself.
        to_baseline: difference to the baseline; None for the baseline itself, or where there is none.
        to_target: time to the target WER; None without a target.
    """

    contestant: str
    seeds: tuple[int, ...]
    wers: tuple[float, ...]
    wer_mean: float
    wer_sd: float | None
    low: float
    high: float
    scope: Scope
    to_best: Difference | None
    to_baseline: Difference | None
    to_target: TimeToTarget | None


@dataclass(frozen=True)
class SetComparison:
    """All contestants on one test set.

    Attributes:
        name: of the set.
        num_utterances: in it.
        num_speakers: in it; None where they are unknown.
        rows: best mean WER first.
        baseline: name of the contestant that others are compared with, if it is there.
    """

    name: str
    num_utterances: int
    num_speakers: int | None
    rows: Sequence[Row]
    baseline: str | None


@dataclass(frozen=True)
class Comparison:
    """The whole.

    Attributes:
        title: for example the sweep's name.
        sets: one per test set.
        runs: all that were compared.
        target_wer: on the development sets, a fraction; None: not asked for.
        level: of the intervals, for example 0.95.
        problems: what could not be compared, in sentences.
        notes: that must stand next to the results, for example "synthetic speech".
    """

    title: str
    sets: Sequence[SetComparison]
    runs: Sequence[Run]
    target_wer: float | None
    level: float
    problems: Sequence[str]
    notes: Sequence[str]

    def runs_of(self, contestant: str) -> list[Run]:
        """Return the runs of one contestant."""
        return [run for run in self.runs if run.contestant == contestant]

    def times_to_target(self) -> dict[str, TimeToTarget]:
        """Return how soon each contestant came to the target; of none without a target."""
        return {row.contestant: row.to_target for found in self.sets for row in found.rows if row.to_target}
