"""Which runs can be compared: each seed once, and on a test set only runs with the same utterances and references."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from asr.compare.inputs.runs import Run, SetErrors
from asr.evaluation.formatting import shortlist
from asr.evaluation.wer import Unit


def drop_duplicates(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return one run per system and seed, the last by folder name, and messages on the others."""
    unique: dict[tuple[str, int], Run] = {}
    problems = []
    for run in sorted(runs, key=lambda run: str(run.folder)):
        earlier = unique.get((run.system, run.seed))
        if earlier is not None:
            problems.append(
                f"{run.system}, seed {run.seed} was trained twice: {earlier.folder} is left out, {run.folder} is used"
            )
        unique[run.system, run.seed] = run
    return list(unique.values()), problems


def different_budgets(runs: Sequence[Run]) -> list[str]:
    """Return a message if runs had different numbers of updates: then systems differ in more than their settings."""
    names = defaultdict(list)
    for run in runs:
        if run.cost.num_updates is not None:
            names[run.cost.num_updates].append(f"{run.system} seed {run.seed}")
    if len(names) < 2:
        return []
    parts = "; ".join(f"{number} updates: {shortlist(names[number])}" for number in sorted(names))
    return [f"the runs have different numbers of updates; they are compared anyway ({parts})"]


def comparable_runs(runs: Sequence[Run], name: str) -> tuple[list[Run], list[str]]:
    """Return the runs that were tested on the same utterances and references of a set, and why others are left out.

    Those of most runs decide; in a tie, those of the first run. There are none if a single utterance has words.
    """
    problems = []
    if missing := [run.folder for run in runs if name not in run.sets]:
        problems.append(f"{name}: compared without {shortlist(missing)}, which have no errors of this set")
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        if name in run.sets:
            errors = run.sets[name]
            groups[errors.ids, errors.words, errors.speakers, errors.references].append(run)
    largest = max(groups.values(), key=len)
    for group in groups.values():
        if group is not largest:
            why = _difference(group[0].sets[name], largest[0].sets[name], largest[0].unit)
            problems.append(f"{name}: {shortlist(run.folder for run in group)} left out: {why}")
    if sum(map(bool, largest[0].sets[name].words)) > 1:
        return largest, problems
    unit = largest[0].unit
    return [], [
        *problems,
        f"{name} is left out: it has a single utterance with {unit}s, which says nothing about others",
    ]


def _difference(left_out: SetErrors, expected: SetErrors, unit: Unit) -> str:
    extra, missing = sorted(set(left_out.ids) - set(expected.ids)), sorted(set(expected.ids) - set(left_out.ids))
    if extra or missing:
        parts = (("also has", extra), ("lacks", missing))
        return f"it has different utterances ({'; '.join(f'{verb} {shortlist(ids)}' for verb, ids in parts if ids)})"
    for quantity, values, others in (
        (f"number of {unit}s", left_out.words, expected.words),
        ("speaker", left_out.speakers, expected.speakers),
    ):
        if ids := [name for name, value, other in zip(expected.ids, values, others, strict=True) if value != other]:
            return f"the {quantity} differs for {shortlist(ids)}"
    return "it was scored against other reference texts, for example because data.text differs"
