"""Which runs can be compared on a test set: the same utterances, and each seed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from asr.evaluation.comparison.differences import SetCounts
from asr.evaluation.comparison.runs import Run, SetErrors

NUM_NAMED = 5  # ids or runs that a sentence names


def named(things: Iterable[object]) -> str:
    """Return some things as the part of a sentence; many are counted."""
    texts = [str(thing) for thing in things]
    more = len(texts) - NUM_NAMED
    return ", ".join(texts[:NUM_NAMED]) + (f" and {more} more" if more > 0 else "")


def without_duplicates(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return one run per contestant and seed, the last by folder, and what was left out."""
    kept: dict[tuple[str, int], Run] = {}
    problems = []
    for run in sorted(runs, key=lambda run: str(run.folder)):
        former = kept.get((run.contestant, run.seed))
        if former is not None:
            problems.append(
                f"{run.contestant}, seed {run.seed} was trained twice: {former.folder} is left out, "
                f"{run.folder} is compared"
            )
        kept[run.contestant, run.seed] = run
    return list(kept.values()), problems


def differing_budgets(runs: Sequence[Run]) -> list[str]:
    """Say it when trainings had different numbers of updates: then more than the contestants differs."""
    names = defaultdict(list)
    for run in runs:
        names[run.cost.num_updates].append(f"{run.contestant} seed {run.seed}")
    if len(names) < 2:
        return []
    parts = "; ".join(f"{number} updates: {named(names[number])}" for number in sorted(names))
    return [f"the runs differ in their number of updates, and are compared all the same ({parts})"]


def comparable_runs(runs: Sequence[Run], name: str) -> tuple[list[Run], list[str]]:
    """Return the runs that were tested on the same utterances of a set, and why others are left out.

    The utterances that most runs have count; among equals those of the first run.
    """
    problems = []
    missing = [run for run in runs if name not in run.sets]
    if missing:
        problems.append(f"{name}: no errors of {named(run.folder for run in missing)}; compared without")
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        if name in run.sets:
            groups[_key(run.sets[name])].append(run)
    kept = max(groups.values(), key=len)
    for group in groups.values():
        if group is not kept:
            why = _difference(group[0].sets[name], kept[0].sets[name])
            problems.append(f"{name}: {named(run.folder for run in group)} left out: {why}")
    return kept, problems


def _key(errors: SetErrors) -> tuple[object, ...]:
    return errors.ids, errors.words, errors.speakers


def _difference(left_out: SetErrors, kept: SetErrors) -> str:
    more, less = sorted(set(left_out.ids) - set(kept.ids)), sorted(set(kept.ids) - set(left_out.ids))
    if more or less:
        parts = [f"has {named(more)}" if more else "", f"lacks {named(less)}" if less else ""]
        return f"its utterances are others ({'; '.join(part for part in parts if part)})"
    what = "number of words" if left_out.words != kept.words else "speaker"
    pairs = zip(
        kept.ids,
        zip(left_out.words, left_out.speakers, strict=True),
        zip(kept.words, kept.speakers, strict=True),
        strict=True,
    )
    return f"the {what} of {named(id for id, ours, theirs in pairs if ours != theirs)} is another"


def count_errors(runs: Sequence[Run], name: str) -> SetCounts:
    """Sum word errors over what counts as independent: speakers where all are known, else utterances."""
    first = runs[0].sets[name]
    known = all(first.speakers) and len(set(first.speakers)) > 1
    labels = first.speakers if known else first.ids
    _, units = np.unique(np.array([str(label) for label in labels]), return_inverse=True)

    def summed(counts: Sequence[int]) -> np.ndarray:
        sums = np.zeros(units.max() + 1, np.int64)
        np.add.at(sums, units, counts)
        return sums

    errors: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for run in runs:
        errors[run.contestant][run.seed] = summed(run.sets[name].errors)
    return SetCounts(errors, summed(first.words), "speaker" if known else "utterance")
