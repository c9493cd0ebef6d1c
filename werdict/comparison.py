"""Compares systems over seeds on every test set."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from werdict.error_files import interval_of_counts
from werdict.formatting import shortlist
from werdict.result import Axis, Comparison, Contrast, Row, Scale, Scope, SetComparison, Target
from werdict.results import comparable_runs, different_budgets, drop_duplicates
from werdict.runs import Inputs, Run, Tuning
from werdict.scoring import RATE_NAMES, lacks_spaces, spelling_share
from werdict.statistics.estimate import estimate, matched_pairs
from werdict.statistics.judge import count_errors, reliabilities
from werdict.statistics.times import DEV_WER, equal_time, times_to_target

AUTO, USUAL = "auto", "adamw"  # baselines
MUCH = 0.1  # of a system's errors


def compare(
    inputs: Inputs,
    *,
    title: str,
    baseline: str = AUTO,
    pairs: Literal["baseline", "all"] = "baseline",
    scale: Scale = "ratio",
    looks: Sequence[int] = (),
    target_wer: float | None = None,
    minutes: float | None = None,
    level: float = 0.95,
    tunings: Sequence[Tuning] = (),
    fixed_sets: bool = False,
) -> Comparison:
    """Compare systems on every test set.

    Args:
        inputs: runs, and what reading them has found.
        title: of the comparison.
        baseline: name of the system that others are compared with, see ``find_baseline``.
        pairs: ``all`` tests each pair too, as a further question.
        scale: of the contrasts: ratios of geometric means, or differences in points.
        looks: planned numbers of seeds after which runs are compared, of which this is one.
        target_wer: a fraction; the result tells when each system reached it on the development sets. None: what the
            runs themselves name.
        minutes: of training, above 0, after which systems are compared on the development sets; None: what all had.
        level: of each question, above 0 and below 1; divided among the looks.
        tunings: trials that chose the systems' settings.
        fixed_sets: verdicts are about other seeds on these test sets, and not about other speakers.

    Raises:
        ValueError: no test set can be compared, or there is no such baseline.
    """
    runs, duplicates = drop_duplicates(inputs.runs)
    target, disagreement = _find_target(runs, target_wer)
    base = find_baseline(list(dict.fromkeys(run.system for run in inputs.runs)), baseline)
    lost = set(inputs.failed) - {(run.system, run.seed) for run in runs}
    problems = [*inputs.problems, *duplicates, *different_budgets(runs), *disagreement]
    alpha = (1 - level) / max(1, len(looks))
    sets = []
    for name in sorted({name for run in runs for name in run.sets}):
        comparable, left_out = comparable_runs(runs, name)
        problems += left_out
        if comparable:
            comparable += [failed_run(system, seed, comparable[0], name) for system, seed in sorted(lost)]
            options = name, base, pairs == "all", scale, alpha, inputs.has_seeds, fixed_sets
            subsets = {
                column: [
                    replace(_SetComparer(part, *options).compare(), name=value)
                    for value, part in _parts(comparable, name, labels)
                ]
                for column, labels in inputs.labels.get(name, {}).items()
            }
            sets.append(replace(_SetComparer(comparable, *options).compare(), subsets=subsets))
    if not sets:
        why = problems or inputs.notes or ["no runs were given"]
        raise ValueError(f"there is no test set to compare: {'; '.join(why)}")
    axes: tuple[Axis, ...] = ("updates", "seconds") if target else ()
    tables = (times_to_target(runs, target.wer, axis, alpha, base, lost) for axis in axes if target)
    times = [table for table in tables if table is not None]
    after = equal_time(runs, alpha, scale, minutes and 60 * minutes, base)
    problems += _missing_curves(runs, bool(axes) and not times, after is None, minutes)
    notes = [*inputs.notes, *_hints(runs)]
    return Comparison(title, sets, runs, target, times, after, level, problems, notes, tunings, scale, looks)


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


def find_baseline(systems: Sequence[str], baseline: str) -> str:
    """Return the system of that name, or the only one whose first word it is.

    ``auto`` is ``adamw``, if there is exactly one, and else the first system. Case does not count: without an optimizer
    override a run is named by its class, for example ``AdamW``.

    Raises:
        ValueError: there is no such system, or there are several.
    """
    if baseline == AUTO and AUTO not in systems:
        with contextlib.suppress(ValueError):
            return find_baseline(systems, USUAL)
        return next(iter(systems), "")
    if not systems:
        return ""
    folded = baseline.casefold()
    near = [name for name in systems if name.casefold() == folded]
    near = near or [name for name in systems if name.casefold().split()[0] == folded]
    if len(near) == 1:
        return near[0]
    problem = f"several systems are called {baseline!r}" if near else f"no system is called {baseline!r}"
    raise ValueError(f"baseline: {problem}; choose one of {shortlist(near or systems)}, or leave baseline out")


def failed_run(system: str, seed: int, like: Run, test_set: str) -> Run:
    """Return a run that has failed by itself as one that recognized nothing: each word of the set is an error."""
    errors = like.sets[test_set]
    nothing = replace(errors, errors=errors.words, depends_on_audio=False, texts=None)
    return Run(Path("failed"), system, seed, {test_set: nothing}, unit=like.unit, has_failed=True)


class _SetComparer:
    """Compares systems on one test set.

    Args:
        runs: that were tested on the same utterances.
        name: of the set.
        baseline: of the comparison; the first system stands in if it lacks this set.
        all_pairs: whether each pair is tested too.
        scale: of the contrasts.
        alpha: of each question.
        has_seeds: False for single runs, which are compared over speakers, or utterances, alone.
        fixed_sets: whether runs are compared over seeds alone.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        name: str,
        baseline: str,
        all_pairs: bool,
        scale: Scale,
        alpha: float,
        has_seeds: bool,
        fixed_sets: bool,
    ) -> None:
        self.name, self.alpha, self.has_seeds, self.all_pairs = name, alpha, has_seeds, all_pairs
        self.unit, self.errors = runs[0].unit, runs[0].sets[name]
        self.runs: dict[str, list[Run]] = defaultdict(list)
        for run in sorted(runs, key=lambda run: run.seed):
            self.runs[run.system].append(run)
        self.baseline = baseline if baseline in self.runs else next(iter(self.runs))
        learned = {
            system: (sum(run.sets[name].has_learned for run in group), len(group))
            for system, group in self.runs.items()
        }
        self.reliability = reliabilities(learned, self.baseline, alpha)
        self.counts = count_errors([run for group in self.runs.values() for run in group], name)
        self.judge = self.counts.judge(alpha, scale, has_seeds, fixed_sets)
        self.contrasts = self.judge.from_baseline(self.baseline)

    def compare(self) -> SetComparison:
        best = self.judge.may_be_best()
        rows = [self._row(system, system in best) for system in self.runs]
        speakers = {speaker for speaker, num in zip(self.errors.speakers, self.errors.words, strict=True) if num}
        tested = [run.sets[self.name] for runs in self.runs.values() for run in runs if not run.has_failed]
        return SetComparison(
            name=self.name,
            unit=self.unit,
            num_utterances=len(self.errors.ids),
            num_speakers=None if None in speakers else len(speakers),
            effective_units=self.counts.effective_units,
            seen_speakers=self.errors.seen_speakers,
            rows=sorted(rows, key=lambda row: (row.wer_geomean, row.system)),
            baseline=self.baseline,
            pairs=[self._with_points(pair) for pair in self.judge.all_pairs()] if self.all_pairs else [],
            num_runs=len(tested),
            num_without_texts=sum(errors.depends_on_audio is None for errors in tested),
            has_seeds=self.has_seeds,
        )

    def _row(self, system: str, may_be_best: bool) -> Row:
        seeds = sorted(self.counts.errors[system])
        wers = self.counts.wers(system, seeds)
        low, high, scope = self._interval(system)
        contrast = self.contrasts.get(system)
        return Row(
            system=system,
            seeds=tuple(seeds),
            wers=tuple(wers),
            wer_mean=statistics.mean(wers),
            wer_geomean=self.counts.geometric_mean(system),
            reliability=self.reliability[system],
            wer_sd=statistics.stdev(wers) if len(wers) > 1 else None,
            low=low,
            high=high,
            scope=scope,
            may_be_best=may_be_best,
            to_baseline=None if contrast is None else self._with_points(contrast),
        )

    def _with_points(self, contrast: Contrast) -> Contrast:
        """Return a contrast with the difference of the mean rates, and of single runs with sclite's test."""
        systems = contrast.system, contrast.other
        means = (statistics.mean(self.counts.wers(name, self.judge.seeds(*systems))) for name in systems)
        first, second = (self.runs[name][0].sets[self.name].texts for name in systems)
        matched = None if self.has_seeds or first is None or second is None else matched_pairs(first, second)
        return replace(contrast, points=next(means) - next(means), matched_pairs_p=matched)

    def _interval(self, system: str) -> tuple[float, float, Scope]:
        """Return the interval of the mean WER; for a single run the bootstrap interval that its own report has."""
        matrix, words = self.counts.matrix(system, sorted(self.counts.errors[system])), self.counts.words
        unit = self.counts.unit
        if len(matrix) == 1:
            plain = interval_of_counts(unit, matrix[0], words, level=1 - self.alpha)
            return plain.low, plain.high, "this run only"
        low, high = map(float, estimate(matrix, words).interval(self.alpha))
        if not matrix.any():
            # both variances are nearly 0 then; the exact bound for that many words is not
            high = max(high, interval_of_counts(unit, matrix.sum(0), words, level=1 - self.alpha).high)
        # that a rate is at least 0 is known without any run
        low = max(0.0, low) if low > 0 or math.isfinite(high) else -math.inf
        return low, high, "seeds and speakers" if unit == "speaker" else "seeds and utterances"
