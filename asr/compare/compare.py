"""Compares systems over seeds on every test set."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from asr.compare.inputs.matching import comparable_runs, different_budgets, drop_duplicates
from asr.compare.inputs.runs import Inputs, Run
from asr.compare.inputs.tuning import Tuning
from asr.compare.result import Axis, Comparison, Difference, Row, Scope, SetComparison, Target
from asr.compare.statistics.counts import count_errors
from asr.compare.statistics.curves import DEV_WER
from asr.compare.statistics.estimate import effective_number, estimate
from asr.compare.statistics.failures import learned_runs, reliabilities
from asr.compare.statistics.matched_pairs import matched_pairs
from asr.compare.statistics.pairs import SetDifferences
from asr.compare.statistics.times import equal_time, times_to_target
from asr.evaluation.confidence import interval_of_counts
from asr.evaluation.formatting import shortlist
from asr.evaluation.normalization import lacks_spaces, spelling_share
from asr.evaluation.wer import RATE_NAMES

AUTO, USUAL = "auto", "adamw"  # baselines
MUCH = 0.1  # of a system's errors


def compare(
    inputs: Inputs,
    *,
    title: str,
    baseline: str | None = None,
    comparisons: Literal["all", "baseline"] = "all",
    target_wer: float | None = None,
    minutes: float | None = None,
    level: float = 0.95,
    tunings: Sequence[Tuning] = (),
) -> Comparison:
    """Compare systems on every test set.

    Args:
        inputs: runs, and what reading them has found.
        title: of the comparison.
        baseline: name of the system that others are compared with, see ``find_baseline``; None: no baseline.
        comparisons: which pairs are tested: ``all``, or those with the ``baseline`` alone, which finds more of them.
        target_wer: a fraction; the result tells when each system reached it on the development sets. None: what the
            runs themselves name.
        minutes: of training, above 0, after which systems are compared on the development sets; None: what all had.
        level: of intervals and verdicts, above 0 and below 1.
        tunings: trials that chose the systems' settings.

    Raises:
        ValueError: no test set can be compared, or there is no such baseline.
    """
    runs, duplicates = drop_duplicates(inputs.runs)
    target, disagreement = _find_target(runs, target_wer)
    base = find_baseline(sorted({run.system for run in runs}), baseline)
    if comparisons == "baseline" and base is None:
        raise ValueError("comparisons=baseline needs a baseline: give baseline=NAME")
    only_with = base if comparisons == "baseline" else None
    lost = set(inputs.failed) - {(run.system, run.seed) for run in runs}
    problems = [*inputs.problems, *duplicates, *different_budgets(runs), *disagreement]
    sets = []
    for name in sorted({name for run in runs for name in run.sets}):
        comparable, left_out = comparable_runs(runs, name)
        problems += left_out
        if comparable:
            options = runs, name, base, only_with, level, lost, inputs.has_seeds
            whole = _SetComparer(comparable, *options).compare()
            subsets = {
                column: [
                    replace(_SetComparer(part, *options).compare(), name=value)
                    for value, part in _parts(comparable, name, labels)
                ]
                for column, labels in inputs.labels.get(name, {}).items()
            }
            sets.append(replace(whole, subsets=subsets))
    if not sets:
        why = problems or inputs.notes or ["no runs were given"]
        raise ValueError(f"there is no test set to compare: {'; '.join(why)}")
    axes: tuple[Axis, ...] = ("updates", "seconds") if target else ()
    tables = (times_to_target(runs, target.wer, axis, level, base, lost, only_with) for axis in axes if target)
    times = [table for table in tables if table is not None]
    after = equal_time(runs, level, minutes and 60 * minutes, base, only_with)
    problems += _missing_curves(runs, bool(axes) and not times, after is None, minutes)
    return Comparison(title, sets, runs, target, times, after, level, problems, [*inputs.notes, *_hints(runs)], tunings)


def _hints(runs: Sequence[Run]) -> Iterator[str]:
    """Yield how texts can be scored in another way, if much of what is counted now is no error of recognition."""
    texts = {run.system: errors.texts for run in runs for errors in run.sets.values() if errors.texts is not None}
    shares = {system: spelling_share(one.references, one.hypotheses) for system, one in texts.items()}
    if much := [f"{system} {share:.0%}" for system, share in shares.items() if share >= MUCH]:
        yield f"errors in case or punctuation alone: {shortlist(much)}; scoring.normalize=basic does not count them"
    if runs[0].unit == "word" and any(lacks_spaces(one.references) for one in texts.values()):
        yield "words have no spaces between them, so that whole sentences are counted: unit=character counts characters"


def _parts(runs: Sequence[Run], name: str, labels: Sequence[str]) -> Iterator[tuple[str, list[Run]]]:
    """Yield each label with the runs as if they had been tested on its utterances alone, if two of them have words."""
    for label in sorted({*labels}):
        places = [place for place, value in enumerate(labels) if value == label]
        parts = [replace(run, sets={name: run.sets[name].at(places)}) for run in runs]
        if sum(map(bool, parts[0].sets[name].words)) > 1:
            yield label, parts


def _missing_curves(runs: Sequence[Run], no_target: bool, no_equal_time: bool, minutes: float | None) -> Iterator[str]:
    """Yield why runs could not be compared on the development sets, if that was asked for or is surprising."""
    if no_target:
        rate_name = RATE_NAMES[runs[0].unit]
        yield f"no times to a target: no run has logged its {rate_name} on the development sets"
    untimed = [run.folder for run in runs if DEV_WER in run.curves and not run.curves[DEV_WER].seconds]
    if no_equal_time and minutes is not None:
        yield f"no comparison after minutes={minutes}: not every run has logged times of its validations"
    elif no_equal_time and 0 < len(untimed) < len(runs):
        yield f"no comparison after the same time: no times of the validations of {shortlist(untimed)}"


def _find_target(runs: Sequence[Run], target_wer: float | None) -> tuple[Target | None, list[str]]:
    """Return the WER to reach, given or named by all runs, and a message if they name different ones."""
    named = {run.target_wer for run in runs}
    if target_wer is not None:
        return Target(target_wer, is_fixed=named == {target_wer}), []
    if len(named) > 1:
        texts = ", ".join(sorted(map(str, named)))
        return None, [
            f"no times to a target: the sweeps of the runs have sweep.target_wer={texts}; give one target_wer=…"
        ]
    return next((Target(wer, is_fixed=True) for wer in named if wer is not None), None), []


def find_baseline(systems: Sequence[str], baseline: str | None) -> str | None:
    """Return the system of that name, or the only one whose first word it is; None for no baseline.

    ``auto`` is ``adamw``, if there is exactly one. Case does not count: without an optimizer override a run is named by
    its class, for example ``AdamW``.

    Raises:
        ValueError: there is no such system, or there are several.
    """
    if baseline is None or not systems:
        return None
    if baseline == AUTO and AUTO not in systems:
        with contextlib.suppress(ValueError):
            return find_baseline(systems, USUAL)
        return None
    folded = baseline.casefold()
    near = [name for name in systems if name.casefold() == folded]
    near = near or [name for name in systems if name.casefold().split()[0] == folded]
    if len(near) == 1:
        return near[0]
    problem = f"several systems are called {baseline!r}" if near else f"no system is called {baseline!r}"
    raise ValueError(f"baseline: {problem}; choose one of {shortlist(near or systems)}, or leave baseline out")


class _SetComparer:
    """Compares systems on one test set.

    Args:
        runs: that were tested on the same utterances.
        all_runs: also those without this set.
        name: of the set.
        baseline: of the comparison, which may lack this set.
        only_with: test only pairs with this system; None: all pairs.
        level: of intervals and verdicts.
        lost: systems and seeds of runs that failed.
        has_seeds: False for single runs, which are compared over speakers, or utterances, alone.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        all_runs: Sequence[Run],
        name: str,
        baseline: str | None,
        only_with: str | None,
        level: float,
        lost: Collection[tuple[str, int]],
        has_seeds: bool,
    ) -> None:
        self.name, self.level, self.has_seeds = name, level, has_seeds
        self.unit, self.errors = runs[0].unit, runs[0].sets[name]
        self.runs: dict[str, list[Run]] = defaultdict(list)
        for run in sorted(runs, key=lambda run: run.seed):
            self.runs[run.system].append(run)
        self.baseline = baseline if baseline in self.runs else None
        num_lost = Counter(system for system, _ in lost)
        self.gone = sorted(num_lost.keys() - {run.system for run in all_runs})
        learned = learned_runs(self.runs, name)
        counts = {name: (len(learned[name]), len(runs) + num_lost[name]) for name, runs in self.runs.items()}
        self.reliability = reliabilities(counts | {name: (0, num_lost[name]) for name in self.gone})
        self.counts = count_errors([run for system, runs in self.runs.items() for run in learned[system] or runs], name)
        self.unlearned = [system for system, runs in learned.items() if not runs]
        self.differences = SetDifferences(self.counts, level, only_with, self.unlearned, has_seeds)

    def compare(self) -> SetComparison:
        means = {name: statistics.mean(self._wers(name)) for name in self.runs}
        ranked = sorted(means, key=lambda name: (name in self.unlearned, means[name], name))
        # a system with a single lucky seed has no verdicts, and as the best it would leave the others without them too
        candidates = [name for name in ranked if name not in self.unlearned] or ranked
        candidates = [name for name in candidates if len(self.counts.errors[name]) > 1] or candidates
        speakers = {speaker for speaker, num in zip(self.errors.speakers, self.errors.words, strict=True) if num}
        tested = [run.sets[self.name] for runs in self.runs.values() for run in runs]
        return SetComparison(
            name=self.name,
            unit=self.unit,
            num_utterances=len(self.errors.ids),
            num_speakers=None if None in speakers else len(speakers),
            effective_units=effective_number(self.counts.words),
            rows=[self._row(name, candidates) for name in ranked],
            pairs=self.differences.differences(),
            num_candidates=len(candidates),
            baseline=self.baseline,
            omnibus=self.differences.omnibus,
            power=self.differences.power(candidates[0]),
            gone={name: self.reliability[name] for name in self.gone},
            num_runs=len(tested),
            num_without_texts=sum(errors.depends_on_audio is None for errors in tested),
            has_seeds=self.has_seeds,
        )

    def _wers(self, system: str) -> list[float]:
        return self.counts.wers(system, self.counts.seeds(system))

    def _row(self, system: str, candidates: Sequence[str]) -> Row:
        wers, best = self._wers(system), candidates[0]
        low, high, scope = self._interval(system, len(candidates) if system == best else 1)
        against = {
            other: None if other in (None, system) else self._difference(system, str(other))
            for other in (best, self.baseline)
        }
        return Row(
            system=system,
            seeds=tuple(self.counts.seeds(system)),
            wers=tuple(wers),
            wer_mean=statistics.mean(wers),
            wer_mean_of_all=statistics.mean(run.sets[self.name].wer for run in self.runs[system]),
            reliability=self.reliability[system],
            wer_sd=statistics.stdev(wers) if len(wers) > 1 else None,
            low=low,
            high=high,
            scope=scope,
            to_best=against[best],
            to_baseline=against[self.baseline],
        )

    def _difference(self, system: str, other: str) -> Difference | None:
        difference = self.differences.difference(system, other)
        first, second = (self.runs[name][0].sets[self.name].texts for name in (system, other))
        if self.has_seeds or difference is None or first is None or second is None:
            return difference
        return replace(difference, matched_pairs_p=matched_pairs(first, second))

    def _interval(self, system: str, chosen_from: int) -> tuple[float, float, Scope]:
        """Return the interval of the mean WER; for a single run the bootstrap interval that its own report has."""
        matrix, words = self.counts.matrix(system, self.counts.seeds(system)), self.counts.words
        unit, alpha = self.counts.unit, 1 - self.level
        if len(matrix) == 1:
            plain = interval_of_counts(unit, matrix[0], words, level=self.level)
            # drawing anew takes seconds with many utterances
            chosen = (
                plain if chosen_from == 1 else interval_of_counts(unit, matrix[0], words, level=1 - alpha / chosen_from)
            )
            return plain.low, chosen.high, "this run only"
        low, high = map(float, estimate(matrix, words).interval(alpha, chosen_from))
        if not matrix.any():
            # both variances are nearly 0 then; the exact bound for that many words is not
            high = max(high, interval_of_counts(unit, matrix.sum(0), words, level=1 - alpha / chosen_from).high)
        # that a rate is at least 0 is known without any run
        low = max(0.0, low) if low > 0 or math.isfinite(high) else -math.inf
        return low, high, "seeds and speakers" if unit == "speaker" else "seeds and utterances"
