"""Sections on speed, and on utterances, speakers and substitutions."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from werdict.formatting import UNKNOWN, count, duration, number, p_value, percent
from werdict.report.headline import times_sentence
from werdict.report.sections import SYSTEM, Cell, Column, Table, contrast_cell, mean_cell, verdict_cell
from werdict.result import Comparison, EqualTime, Scale, SetComparison, Target, TimesToTarget
from werdict.runs import Run, Texts


def cost_table(comparison: Comparison) -> Table:
    """Return time and memory of each system: medians over its runs."""
    rows = []
    for name in comparison.systems:
        runs = comparison.runs_of(name)
        rates = {run.lr for run in runs} or {None}
        lr = Cell(number(rates.pop()) if len(rates) == 1 else "several")
        numbers = (
            _median(runs, "num_updates"),
            _median(runs, "num_parameters"),
            _median(runs, "seconds_per_update"),
            _median(runs, "optimizer_share", 100),
            _median(runs, "state_bytes_per_parameter"),
            _median(runs, "peak_memory_mb"),
        )
        step_ms, step_sd = (_median(runs, f"optimizer_step_{field}", 1000) for field in ("seconds", "sd"))
        step, time = mean_cell(step_ms, step_sd, number), Cell(duration(_median(runs, "seconds")))
        rows.append([Cell(name), lr, *(Cell(number(value)) for value in numbers), step, time])
    columns = [
        *(SYSTEM, Column("lr"), Column("updates"), Column("parameters", in_terminal=False)),
        *map(Column, ("seconds per update", "optimizer time %", "state bytes per parameter", "peak memory MB")),
        *(Column("optimizer step ms", in_terminal=False), Column("training time")),
    ]
    note = "Medians over the runs that measured them. Times of a run are means over its updates; optimizer steps ± sd."
    return Table("Training cost", columns, rows, [note])


def _median(runs: Sequence[Run], name: str, scale: float = 1) -> float | None:
    """Return the median of a field of ``Cost`` over the runs that measured it."""
    values = [value for run in runs if (value := getattr(run.cost, name)) is not None]
    return scale * statistics.median(values) if values else None


def cost_tables(comparison: Comparison) -> list[Table]:
    """Return all tables of speed, time and memory; none for runs of which only their results are known."""
    if not comparison.is_of_our_runs:
        return []
    tables = []
    if comparison.target is not None:
        tables = [_time_table(times, comparison, comparison.target) for times in comparison.times]
    if comparison.equal_time is not None:
        tables.append(_progress_table(comparison.equal_time, comparison))
    return [*tables, cost_table(comparison)]


def _time_table(times: TimesToTarget, comparison: Comparison, target: Target) -> Table:
    shown, quantity = (duration, "Time") if times.axis == "seconds" else (number, "Updates")
    least = ["" if row.num_reached == row.num_runs else "≥ " for row in times.rows]
    verdicts, contrasts, about = _contrasts(times, "ratio", comparison.level)
    columns = {
        SYSTEM: [Cell(row.system) for row in times.rows],
        **verdicts,
        Column("reached by"): [Cell(f"{row.num_reached} of {row.num_runs}") for row in times.rows],
        Column(quantity.lower()): [
            Cell(f"{sign}{shown(row.mean)}") for sign, row in zip(least, times.rows, strict=True)
        ],
        **contrasts,
    }
    notes = [times_sentence(times), "Geometric means over seeds.", *about]
    if any(least):
        budget = f"{shown(times.budget)}{' updates' if times.axis == 'updates' else ''}"
        notes.append(
            f"≥: not every run reached it within the {budget} that all had; a run that did not counts as {budget}, in "
            "ratios too."
        )
    when = "fixed before" if target.is_fixed else "chosen after the runs"
    title = f"{quantity} to {100 * target.wer:g} % {comparison.rate_name} on dev ({when})"
    return Table.of(title, columns, [" ".join(notes)])


def _progress_table(equal: EqualTime, comparison: Comparison) -> Table:
    rows, rate_name = equal.rows, comparison.rate_name
    verdicts, contrasts, about = _contrasts(equal, comparison.scale, comparison.level)
    columns = {
        SYSTEM: [Cell(row.system) for row in rows],
        **verdicts,
        Column(f"{rate_name} % on dev"): [mean_cell(row.wer_mean, row.wer_sd) for row in rows],
        **contrasts,
        Column(f"mean {rate_name} %"): [Cell(percent(row.area)) for row in rows],
        Column("± sd", in_terminal=False): [Cell(percent(row.area_sd)) for row in rows],
        Column("seeds", in_terminal=False): [Cell(str(row.num_runs)) for row in rows],
    }
    notes = [
        "Training time includes the optimizer's steps, not validations; slower runs have not finished their schedule.",
        *about,
        f"Mean {rate_name}: over the updates that all runs had (area under the curve), from 100 % at the start.",
    ]
    if equal.num_earlier:
        notes.append(
            f"{count(equal.num_earlier, 'run')} had the last validation earlier, and count with its {rate_name}."
        )
    return Table.of(f"After {duration(equal.seconds)} of training", columns, [" ".join(notes)])


Columns = Mapping[Column, Sequence[Cell]]


def _contrasts(times: TimesToTarget | EqualTime, scale: Scale, level: float) -> tuple[Columns, Columns, Sequence[str]]:
    """Return a column of verdicts, columns of numbers, and what they are about; nothing if there is a single system."""
    if len(times.rows) == 1:
        return {}, {}, ()
    rows = []
    for row in times.rows:
        if (contrast := row.contrast) is None:
            verdict = Cell("reference" if row.system == times.reference else "not compared")
            rows.append((verdict, Cell(UNKNOWN), Cell(UNKNOWN)))
        else:
            size = contrast_cell(contrast, scale)
            rows.append((verdict_cell(contrast.verdict), size, Cell(p_value(contrast.p_adjusted))))
    verdicts, sizes, p_values = zip(*rows, strict=True)
    # at equal time there are more numbers, and the verdict says whether p is small
    p = Column("p (adjusted)", in_terminal=isinstance(times, TimesToTarget))
    about = (
        f"Compared with {times.reference}. Intervals and verdicts cover other seeds on the same development sets, and "
        f"are corrected for the number of systems ({100 * level:g} %)."
    )
    return (
        {Column("verdict", is_text=True): verdicts},
        {Column(f"{scale} [{100 * level:g} %]"): sizes, p: p_values},
        [about],
    )


MAX_SPEAKERS = 200
NUM_SUBSTITUTIONS = 10
MAX_UTTERANCES = 200


@dataclass(frozen=True)
class Mark:
    """A word in a line of an alignment.

    Attributes:
        text: empty if there is no word.
        error: ``sub``, ``del``, ``ins``, or nothing.
    """

    text: str
    error: str = ""


@dataclass(frozen=True)
class Example:
    """An utterance with what each system recognized.

    Attributes:
        errors: by system.
        lines: the reference, then a line of each system; words of one column belong together.
    """

    id: str
    speaker: str
    errors: Mapping[str, int]
    lines: Sequence[tuple[str, Sequence[Mark]]]


@dataclass(frozen=True)
class Errors:
    """The errors on one test set.

    Attributes:
        tables: rates by speaker, and the most frequent substitutions.
        examples: of every pair of systems those where one is right and the other is not, most errors first.
        note: how many there are.
    """

    systems: Sequence[str]
    tables: Sequence[Table]
    examples: Sequence[Example]
    note: str


def errors_of(comparison: Comparison, test_set: SetComparison) -> Errors | None:
    """Return the errors on a test set: rates over the seeds of each row, texts of its median seed; None without texts.

    What is not a mean is of one run, which must not contradict the mean: a first seed may have learned nothing.
    """
    by_system = {
        row.system: [
            run
            for run in comparison.runs_of(row.system)
            if run.seed in row.seeds and test_set.name in run.sets and run.sets[test_set.name].texts is not None
        ]
        for row in test_set.rows
        if comparison.runs_of(row.system)  # not if all have failed
    }
    if not all(by_system.values()):
        return None
    runs = [_median_run(runs, test_set.name) for runs in by_system.values()]
    texts = {run.system: run_texts for run in runs if (run_texts := run.sets[test_set.name].texts)}
    counts = np.array([run.sets[test_set.name].errors for run in runs])
    places = _chosen(counts)
    sets = runs[0].sets[test_set.name]
    examples = [
        Example(
            sets.ids[place],
            sets.speakers[place] or "",
            {run.system: int(errors) for run, errors in zip(runs, counts[:, place], strict=True)},
            aligned(texts, place),
        )
        for place in places
    ]
    num_wrong = int((counts.sum(0) > 0).sum())
    seeds = ", ".join(f"{run.system} {run.seed}" for run in runs)
    of_seeds = f", each with the seed of its median {test_set.rate_name}: {seeds}" if test_set.has_seeds else ""
    note = f"Shown: {len(places)} of {count(num_wrong, 'utterance')} with errors of any system{of_seeds}."
    tables = [_speaker_table(test_set, by_system), _substitutions(test_set, runs, texts)]
    return Errors([*texts], tables, examples, note)


def _median_run(runs: Sequence[Run], test_set: str) -> Run:
    return sorted(runs, key=lambda run: (run.sets[test_set].wer, run.seed))[(len(runs) - 1) // 2]


def _chosen(counts: np.ndarray) -> list[int]:
    """Return which utterances are shown: for each pair of systems where one is right, and those with most errors."""
    num_systems = len(counts)
    each = max(2, MAX_UTTERANCES // max(1, num_systems * num_systems))
    worst = np.argsort(-counts.sum(0), kind="stable")
    places = [int(place) for place in worst[: 2 * each] if counts[:, place].any()]
    for right in range(num_systems):
        for wrong in range(num_systems):
            order = np.argsort(-counts[wrong], kind="stable")
            fits = order[(counts[right][order] == 0) & (counts[wrong][order] > 0)]
            places += map(int, fits[:each])
    chosen = list(dict.fromkeys(places))
    return sorted(chosen, key=lambda place: -counts[:, place].sum())


def aligned(texts: Mapping[str, Texts], place: int) -> list[tuple[str, list[Mark]]]:
    """Return the reference and all hypotheses of an utterance, in columns."""
    first = next(iter(texts.values()))
    reference = first.words(first.references[place])
    by_system: dict[str, tuple[list[Mark], dict[int, list[str]]]] = {}
    for system, system_texts in texts.items():
        recognized = system_texts.words(system_texts.hypotheses[place])
        marks, inserted = [Mark(word) for word in reference], defaultdict[int, list[str]](list)
        for edit in system_texts.edits[place]:
            if edit.tag == "insert":
                inserted[edit.src_pos].append(recognized[edit.dest_pos])
            elif edit.tag == "delete":
                marks[edit.src_pos] = Mark(reference[edit.src_pos], "del")
            else:
                marks[edit.src_pos] = Mark(recognized[edit.dest_pos], "sub")
        by_system[system] = marks, inserted
    widths = [max(len(inserted[slot]) for _, inserted in by_system.values()) for slot in range(len(reference) + 1)]
    lines: list[tuple[str, list[Mark]]] = [("reference", []), *((system, []) for system in by_system)]
    for slot, width in enumerate(widths):
        for name, line in lines:
            words = by_system[name][1][slot] if name in by_system else []
            line += [Mark(words[number], "ins") if number < len(words) else Mark("") for number in range(width)]
            if slot < len(reference):
                line.append(by_system[name][0][slot] if name in by_system else Mark(reference[slot]))
    return lines


def _speaker_table(test_set: SetComparison, by_system: Mapping[str, Sequence[Run]]) -> Table:
    """Return the mean rate of each speaker, most words first; without rows if speakers are unknown."""
    num_words: Counter[str] = Counter()
    errors: dict[str, Counter[str]] = {system: Counter() for system in by_system}
    first = next(iter(by_system.values()))[0].sets[test_set.name]
    for speaker, num in zip(first.speakers, first.words, strict=True):
        num_words.update({} if speaker is None else {speaker: num})
    for system, runs in by_system.items():
        for run in runs:
            for speaker, wrong in zip(first.speakers, run.sets[test_set.name].errors, strict=True):
                errors[system][speaker or ""] += wrong
    shown = num_words.most_common(MAX_SPEAKERS)
    columns = {
        Column("speaker", is_text=True): [Cell(speaker) for speaker, _ in shown],
        Column(f"{test_set.unit}s"): [Cell(str(num)) for _, num in shown],
    }
    for system, runs in by_system.items():
        columns[Column(f"{system} {test_set.rate_name} %")] = [
            Cell(percent(errors[system][speaker] / num / len(runs) if num else None)) for speaker, num in shown
        ]
    more = len(num_words) - len(shown)
    notes = [f"Means over the seeds of the table of {test_set.rate_name}s."] * test_set.has_seeds
    notes += [f"{count(more, 'more speaker')} with fewer {test_set.unit}s."] * (more > 0)
    return Table.of("By speaker", columns, notes)


def _substitutions(test_set: SetComparison, runs: Sequence[Run], by_system: Mapping[str, Texts]) -> Table:
    """Return the most frequent substitutions of one run of each system."""
    rows = []
    for run, texts in zip(runs, by_system.values(), strict=True):
        pairs: Counter[tuple[str, str]] = Counter()
        for place, edits in enumerate(texts.edits):
            if any(edit.tag == "replace" for edit in edits):
                ref, hyp = texts.words(texts.references[place]), texts.words(texts.hypotheses[place])
                pairs.update((ref[edit.src_pos], hyp[edit.dest_pos]) for edit in edits if edit.tag == "replace")
        frequent = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:NUM_SUBSTITUTIONS]
        shown = ", ".join(f"{ref} → {hyp} ({num})" for (ref, hyp), num in frequent)
        seed = [Cell(str(run.seed))] * test_set.has_seeds
        rows.append([Cell(run.system), *seed, Cell(str(pairs.total())), Cell(shown or UNKNOWN)])
    columns = [SYSTEM, *[Column("seed")] * test_set.has_seeds, Column("substitutions")]
    title = f"Substitutions{' (of the seed with the median rate)' * test_set.has_seeds}"
    return Table(title, [*columns, Column("most frequent", is_text=True)], rows)
