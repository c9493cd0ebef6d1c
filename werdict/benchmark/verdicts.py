"""Verdicts of the benchmark: frozen when an entry enters, and a set of the best that all entries decide again."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scipy import stats

from werdict.benchmark.entries import DEV_LOSS, Entry, entries_of, read_entry
from werdict.benchmark.rules import BASELINE, LEVEL, LOOKS, RULESETS, TASKS
from werdict.comparison import compare
from werdict.files import read_json, write_whole
from werdict.formatting import interval, ratio
from werdict.result import Comparison, Contrast, SetComparison, TimesToTarget
from werdict.runs import Curve, Inputs
from werdict.statistics.times import dev_curve, finite_points, times_to_target

TARGET_SHARE = 0.75  # of the budget, at which the tuned baseline is at the target
CONFIRMED_P = 0.05
VERDICT_DIGITS = 9  # of its numbers, which do not depend on the processor
OUTCOMES = ("errors", "updates")


def verdict_file(entry: Entry) -> Path:
    """Return where the verdict on an entry is stored."""
    return entry.folder / f"{entry.task}.verdict.json"


def target_loss(root: Path, task: str) -> float:
    """Return the median loss on dev of the tuned baseline's runs at 75 % of the budget; until it is there, as shipped.

    Raises:
        ValueError: the baseline has no runs on the task.
    """
    for ruleset in ("tuned", "as_shipped"):
        if (root / ruleset / BASELINE / f"{task}.jsonl").exists():
            runs = read_entry(root / ruleset / BASELINE, task).runs
            return statistics.median(loss_at(run.curves[DEV_LOSS], TARGET_SHARE) for run in runs)
    raise ValueError(f"{task}: {BASELINE} has no runs, with which all entries are compared")


def loss_at(curve: Curve, share: float) -> float:
    """Return the loss of the last validation within a share of the budget; infinity if it had none yet."""
    updates, losses = finite_points(curve, "updates")
    place = updates.searchsorted(share * updates[-1] + 1e-9, side="right") if len(updates) else 0
    return float(losses[place - 1]) if place else math.inf


def updates_to_target(entry: Entry, target: float) -> tuple[float, bool]:
    """Return the geometric mean of an entry's updates to a loss on dev, and whether all runs reached it.

    One that did not counts with the budget.
    """
    budget = float(entry.shared["fixed"]["trainer.max_steps"])
    curves = [dev_curve(run, "updates", DEV_LOSS) for run in entry.runs]
    times = [math.inf if curve is None else curve.first_time(target) for curve in curves]
    times += [math.inf] * len(entry.failed)
    return statistics.geometric_mean(min(time, budget) for time in times), max(times) <= budget


def compared(entries: Sequence[Entry], baseline: str, target: float) -> Comparison:
    """Compare entries on one task by errors and by updates to the target, over seeds, on the test set as it is.

    Each look has half of the permitted errors.

    Args:
        entries: the baseline among them.
        baseline: entry that the others are compared with.
        target: loss on dev.
    """
    runs = [run for entry in entries for run in entry.runs]
    failed = [key for entry in entries for key in entry.failed]
    title = entries[0].task
    inputs = Inputs(runs, failed=failed)
    comparison = compare(inputs, title=title, baseline=baseline, looks=LOOKS, level=LEVEL, fixed_sets=True)
    times = times_to_target(runs, target, "updates", (1 - LEVEL) / len(LOOKS), baseline, failed, metric=DEV_LOSS)
    assert times is not None  # each run has a curve
    return replace(comparison, times=[times])


def contrasts(comparison: Comparison, name: str) -> Iterator[tuple[str, Contrast]]:
    """Yield how an entry differs from the baseline of a comparison, by each outcome that tells it."""
    errors, times = comparison.sets[0], comparison.times[0]
    differences = [next(row.to_baseline for row in errors.rows if row.system == name)]
    differences.append(next((row.contrast for row in times.rows if row.system == name), None))  # it may have no curve
    yield from ((outcome, one) for outcome, one in zip(OUTCOMES, differences, strict=True) if one is not None)


def new_verdict(entry: Entry, holder: Entry, date: str, target: float) -> dict[str, Any]:
    """Return the verdict on an entry beside the baseline and the holder of the record; later entries do not change it.

    Args:
        entry: with the runs of one of the looks.
        holder: of the record on its task and ruleset; the baseline at first.
        date: of the verdict, YYYY-MM-DD.
        target: loss on dev, of the day of the verdict.
    """
    baseline = read_entry(entry.folder.parent / BASELINE, entry.task)
    others = {one.name: one for one in (baseline, holder) if one.name != entry.name}
    data: dict[str, Any] = {"date": date, "runs": len(entry.lines), "target_loss": target, "holder": holder.name}
    for name, other in others.items():
        comparison = compared([other, entry], name, target)
        data[f"beside {name}"] = {outcome: asdict(one) for outcome, one in contrasts(comparison, entry.name)}
    if "reproduces" in entry.about:
        data["confirms"] = confirms(entry, read_entry(entry.folder.parent / entry.about["reproduces"], entry.task))
    text = json.dumps(data)
    plain = json.loads(text, parse_float=lambda digits: float(f"{float(digits):.{VERDICT_DIGITS}g}"))
    return {**plain, "record": is_better(plain, holder.name) and "reproduces" not in entry.about}


def freeze(root: Path, date: str) -> list[Path]:
    """Give each entry its verdict that has none, or has run its second look since; return the files.

    Args:
        root: of the version.
        date: of today, YYYY-MM-DD.
    """
    written = []
    for task, ruleset in itertools.product(TASKS, RULESETS):
        entries = entries_of(root, task, ruleset)
        for entry in entries:
            before = read_verdict(entry)
            if entry.name == BASELINE or (before is not None and before["runs"] == len(entry.lines)):
                continue
            verdict = new_verdict(entry, holder_of(entries), date, target_loss(root, task))
            write_whole(verdict_file(entry), json.dumps(verdict, indent=1))
            written.append(verdict_file(entry))
    return written


def _stored_contrasts(verdict: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield each contrast of a verdict, with the other entry and the outcome."""
    for key, by_outcome in verdict.items():
        if key.startswith("beside "):
            yield from ((key.removeprefix("beside "), outcome, contrast) for outcome, contrast in by_outcome.items())


def sentences(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a verdict says of an entry beside each other that it was compared with."""
    for other, outcome, contrast in _stored_contrasts(verdict):
        ends = interval(contrast["low"], contrast["high"], ratio)
        yield f"{outcome} ÷ {other}’s: {ratio(contrast['value'])} {ends}, {contrast['verdict']}"
    if is_open(verdict):
        yield f"a question is open: the second look takes {LOOKS[1]} runs"


def is_better(verdict: Mapping[str, Any], other: str) -> bool:
    """Return whether an entry makes significantly fewer errors than another."""
    return bool(verdict.get(f"beside {other}", {}).get("errors", {}).get("verdict") == "better")


def is_open(verdict: Mapping[str, Any]) -> bool:
    """Return whether the first look has left a question of the verdict open."""
    is_undecided = any(contrast["verdict"] == "cannot distinguish" for *_, contrast in _stored_contrasts(verdict))
    return is_undecided and verdict["runs"] < LOOKS[-1]


def confirms(again: Entry, first: Entry) -> bool:
    """Return whether an entry has confirmed another with new seeds: Welch's test of their mean error rates, 5 %."""
    if first.wers == again.wers:
        return True  # the test says nothing of equal rates without any spread
    return bool(stats.ttest_ind(first.wers, again.wers, equal_var=False).pvalue >= CONFIRMED_P)


def read_verdict(entry: Entry) -> dict[str, Any] | None:
    """Return the stored verdict on an entry; None before it has one."""
    path = verdict_file(entry)
    return dict(read_json(path)) if path.exists() else None


def holder_of(entries: Sequence[Entry]) -> Entry:
    """Return the holder of the record: that which was better than the one that was better … than the baseline."""
    verdicts = {entry.name: read_verdict(entry) for entry in entries}
    next_of = {found["holder"]: name for name, found in verdicts.items() if found is not None and found["record"]}
    holder = BASELINE
    while holder in next_of:
        holder = next_of[holder]
    return next(entry for entry in entries if entry.name == holder)


@dataclass(frozen=True)
class Standing:
    """All entries of a task and ruleset.

    Attributes:
        entries: by name; reproductions too.
        verdicts: frozen, by name; none of the baseline.
        comparison: of the entries that may be best, and the baseline: those that were significantly worse than the
            record when they entered are left out, so that no number of them makes the others harder to distinguish.
    """

    task: str
    ruleset: str
    entries: Sequence[Entry]
    verdicts: dict[str, dict[str, Any]]
    target: float
    comparison: Comparison

    @property
    def errors(self) -> SetComparison:
        """Of the test set."""
        return self.comparison.sets[0]

    @property
    def times(self) -> TimesToTarget:
        """Updates to the target."""
        return self.comparison.times[0]


def standings(root: Path) -> Iterator[Standing]:
    """Yield each task and ruleset that has the baseline's entry and another with a verdict."""
    for task, ruleset in itertools.product(TASKS, RULESETS):
        entries = entries_of(root, task, ruleset)
        verdicts = {one.name: found for one in entries if (found := read_verdict(one)) is not None}
        if not verdicts or BASELINE not in {entry.name for entry in entries}:
            continue
        out = {name for name, verdict in verdicts.items() if was_worse(verdict) or "confirms" in verdict}
        left = [entry for entry in entries if entry.name in {BASELINE, *verdicts} - out]
        target = target_loss(root, task)
        yield Standing(task, ruleset, entries, verdicts, target, compared(left, BASELINE, target))


def was_worse(verdict: Mapping[str, Any]) -> bool:
    """Return whether an entry was significantly worse than the record by both outcomes, or by the one that is known."""
    beside = verdict.get(f"beside {verdict['holder']}", {})
    return bool(beside) and all(one["verdict"] == "worse" for one in beside.values())
