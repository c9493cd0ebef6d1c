"""Runs → what their comparison found."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from asr.evaluation.comparison.differences import Differences, SetCounts
from asr.evaluation.comparison.estimate import estimate
from asr.evaluation.comparison.matching import (
    comparable_runs,
    count_errors,
    differing_budgets,
    named,
    without_duplicates,
)
from asr.evaluation.comparison.result import Comparison, Row, Scope, SetComparison, TimeToTarget
from asr.evaluation.comparison.runs import Run
from asr.evaluation.comparison.target import time_to_target
from asr.evaluation.confidence import interval_of_counts


def compare(
    runs: Sequence[Run],
    *,
    title: str,
    baseline: str | None = None,
    target_wer: float | None = None,
    level: float = 0.95,
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Comparison:
    """Compare contestants on every test set.

    Args:
        runs: finished trainings.
        title: of the comparison.
        baseline: name of the contestant that others are compared with, see ``find_baseline``; None: none.
        target_wer: a fraction; when each contestant reached it on the development sets.
        level: of intervals and verdicts.
        problems: what is known already to be incomparable.
        notes: that must stand next to the results.

    Raises:
        ValueError: there is nothing to compare, or an option is out of its range.
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level} does not lie between 0 and 1; 0.95 is customary")
    if target_wer is not None and not 0 <= target_wer <= 1:
        raise ValueError(f"target_wer={target_wer} does not lie between 0 and 1: it is a fraction, 0.2 stands for 20 %")
    kept, duplicates = without_duplicates(runs)
    found = [*problems, *duplicates, *differing_budgets(kept)]
    base, complaint = find_baseline(sorted({run.contestant for run in kept}), baseline)
    found += complaint
    sets = []
    for name in sorted({name for run in kept for name in run.sets}):
        comparable, left_out = comparable_runs(kept, name)
        found += left_out
        if len(comparable[0].sets[name].ids) < 2:
            found.append(f"{name}: a set of a single utterance says nothing about others; left out")
        else:
            sets.append(_SetComparer(comparable, name, base, target_wer, level).compare())
    if not sets:
        raise ValueError("there is no test set to compare:\n  " + "\n  ".join(found or ["no runs were given"]))
    return Comparison(title, sets, kept, target_wer, level, found, list(notes))


def find_baseline(contestants: Sequence[str], asked: str | None) -> tuple[str | None, list[str]]:
    """Return the contestant of that name, or the only one whose name begins with it, and what is wrong.

    Case does not count: ``AdamW`` is the name of runs where nothing was typed.
    """
    if asked is None:
        return None, []
    same = [name for name in contestants if name.casefold() == asked.casefold()]
    near = same or [name for name in contestants if name.casefold().split()[:1] == [asked.casefold()]]
    if len(near) == 1:
        return near[0], []
    what = f"several contestants are called {asked!r}" if near else f"there is no contestant {asked!r}"
    return None, [
        f"{what}: nothing is compared with a baseline; baseline=NAME chooses one of {named(near or contestants)}"
    ]


class _SetComparer:
    """Compares contestants on one test set; see ``compare``."""

    def __init__(
        self, runs: Sequence[Run], name: str, baseline: str | None, target_wer: float | None, level: float
    ) -> None:
        self.name, self.target_wer, self.level = name, target_wer, level
        self.errors = runs[0].sets[name]
        self.runs: dict[str, list[Run]] = defaultdict(list)
        for run in sorted(runs, key=lambda run: run.seed):
            self.runs[run.contestant].append(run)
        self.baseline = baseline if baseline in self.runs else None
        self.counts: SetCounts = count_errors(runs, name)
        self.differences = Differences(self.counts, self.baseline, level)

    def compare(self) -> SetComparison:
        means = {name: statistics.mean(self._wers(name)) for name in self.runs}
        ranked = sorted(means, key=lambda name: (means[name], name))
        # a single lucky seed must not take away what the others can be compared with
        best = next((name for name in ranked if len(self.runs[name]) > 1), ranked[0])
        speakers = set(self.errors.speakers)
        return SetComparison(
            name=self.name,
            num_utterances=len(self.errors.ids),
            num_speakers=None if None in speakers else len(speakers),
            rows=[self._row(name, best) for name in ranked],
            baseline=self.baseline,
        )

    def _wers(self, contestant: str) -> list[float]:
        return self.counts.wers(contestant, self.counts.seeds(contestant))

    def _row(self, contestant: str, best: str) -> Row:
        wers = self._wers(contestant)
        low, high, scope = self._interval(contestant)
        against = {
            other: None if other in (None, contestant) else self.differences.difference(contestant, other)
            for other in (best, self.baseline)
        }
        return Row(
            contestant=contestant,
            seeds=tuple(self.counts.seeds(contestant)),
            wers=tuple(wers),
            wer_mean=statistics.mean(wers),
            wer_sd=statistics.stdev(wers) if len(wers) > 1 else None,
            low=low,
            high=high,
            scope=scope,
            to_best=against[best],
            to_baseline=against[self.baseline],
            to_target=self._to_target(contestant),
        )

    def _to_target(self, contestant: str) -> TimeToTarget | None:
        return None if self.target_wer is None else time_to_target(self.runs[contestant], self.target_wer)

    def _interval(self, contestant: str) -> tuple[float, float, Scope]:
        """Interval of the mean WER; of a single run the one that its own report has."""
        matrix, words = self.counts.matrix(contestant, self.counts.seeds(contestant)), self.counts.words
        unit = self.counts.unit
        # endless data may hold errors where this set has none
        alone = interval_of_counts(unit, matrix.sum(0), words, level=self.level)
        if len(matrix) == 1:
            return alone.low, alone.high, "this run only"
        found = estimate(matrix, words)
        mean, half = float(found.mean), float(found.half_width(1 - self.level))
        high = mean + half if mean > 0 else max(half, alone.high)
        return max(0.0, mean - half), high, "seeds and speakers" if unit == "speaker" else "seeds and utterances"
