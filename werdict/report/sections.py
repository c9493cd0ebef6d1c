"""The tables of a report as plain data; the terminal and the page show the same ones."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from werdict.formatting import UNKNOWN, count, interval, number, p_value, percent, points, ratio
from werdict.report.headline import headline, what_learned_means
from werdict.result import Comparison, Contrast, Row, Scale, SetComparison, Verdict
from werdict.scoring import UNIT_NOTES


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        is_text: whether its cells are words, aligned to the left.
        in_terminal: False for columns that do not fit into 80 characters and that other tables repeat, or few need.
    """

    name: str
    is_text: bool = False
    in_terminal: bool = True


@dataclass(frozen=True)
class Cell:
    """One field of a table.

    Attributes:
        detail: further text, smaller on a page.
    """

    text: str
    detail: str = ""
    is_verdict: bool = False


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows; notes are sentences below it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, title: str, columns: Mapping[Column, Sequence[Cell]], notes: Sequence[str] = ()) -> Self:
        """Return a table from the cells of each column."""
        return cls(title, [*columns], [*zip(*columns.values(), strict=True)], notes)


SYSTEM = Column("system", is_text=True)


def mean_cell(mean: float | None, sd: float | None, shown: Callable[[float | None], str] = percent) -> Cell:
    """Return a mean with its standard deviation, as far as they are known."""
    return Cell(shown(mean), "" if sd is None else f"± {shown(sd)}")


def contrast_cell(contrast: Contrast, scale: Scale) -> Cell:
    """Return the size of a contrast with its interval, as far as it is known."""
    shown = ratio if scale == "ratio" else points
    nothing = (0.0, math.inf) if scale == "ratio" else (-math.inf, math.inf)
    is_known = (contrast.low, contrast.high) != nothing
    return Cell(shown(contrast.value), interval(contrast.low, contrast.high, shown) if is_known else "")


def verdict_cell(verdict: Verdict, detail: str = "") -> Cell:
    """Return a verdict, which a page shows in its color."""
    return Cell(verdict, detail, is_verdict=True)


@dataclass(frozen=True)
class SetSection:
    """What a report says of one test set.

    Attributes:
        size: in words.
        headline: sentences, the most important one first.
        tables: WERs, runs that have not learned, differences between systems, WERs with other weights, and of parts.
    """

    name: str
    size: str
    headline: Sequence[str]
    tables: Sequence[Table]


def set_sections(comparison: Comparison) -> list[SetSection]:
    """Return a section per test set."""
    sections, scale = [], comparison.scale
    for test_set in comparison.sets:
        speakers = "unknown speakers" if test_set.num_speakers is None else count(test_set.num_speakers, "speaker")
        tables = [
            _wer_table(test_set, comparison.level),
            reliability_table(test_set, comparison.level),
            _contrast_table(test_set, comparison),
            _pair_table(test_set, comparison),
            _weights_table(comparison, test_set),
            *(_part_table(column, parts, comparison) for column, parts in test_set.subsets.items()),
        ]
        sections.append(
            SetSection(
                test_set.name,
                f"{count(test_set.num_utterances, 'utterance')}, {speakers}",
                headline(test_set, comparison.level, scale, comparison.looks),
                [table for table in tables if table.rows],
            )
        )
    return sections


def _wer_table(test_set: SetComparison, level: float) -> Table:
    rows = test_set.rows
    columns = {SYSTEM: [Cell(row.system) for row in rows]}
    if len(rows) > 1:  # on a phone these two and the rate fit beside the names
        may_be_best, versus = (
            Column(name, is_text=True, in_terminal=False) for name in ("may be best", "vs. baseline")
        )
        columns[may_be_best] = [Cell("yes" if row.may_be_best else "no") for row in rows]
        columns[versus] = [_to_baseline(test_set, row) for row in rows]
    columns[Column(f"{test_set.rate_name} %")] = [mean_cell(row.wer_mean, row.wer_sd) for row in rows]
    if test_set.has_seeds:
        columns[Column("geometric mean %", in_terminal=False)] = [Cell(percent(row.wer_geomean)) for row in rows]
    columns[Column(f"{100 * level:g} % interval")] = [Cell(interval(row.low, row.high), row.scope) for row in rows]
    columns[Column("seeds")] = [Cell(str(len(row.seeds)) if test_set.has_seeds else UNKNOWN) for row in rows]
    notes = ["Each interval is for the mean of its system alone.", *(f"{note}." for note in UNIT_NOTES[test_set.unit])]
    return Table.of(f"{test_set.unit.capitalize()} error rates", columns, notes)


def reliability_table(test_set: SetComparison, level: float) -> Table:
    """Return how many runs learned; without rows if all did."""
    failing = any(row.reliability.num_learned < row.reliability.num_runs for row in test_set.rows)
    counts = {row.system: row.reliability for row in test_set.rows if failing}
    columns = {
        SYSTEM: [Cell(system) for system in counts],
        Column("learned"): [Cell(f"{learned.num_learned} of {learned.num_runs}") for learned in counts.values()],
        Column(f"share % [{100 * level:g} %]"): [
            Cell(interval(learned.low, learned.high)) for learned in counts.values()
        ],
        Column("p (Holm)"): [Cell(p_value(learned.p_adjusted)) for learned in counts.values()],
    }
    note = (
        f"{what_learned_means(test_set)} A run that failed has not learned. p: Fisher's exact test against the "
        f"baseline {test_set.baseline}, corrected for the number of systems."
    )
    return Table.of("Runs that learned", columns, [note])


def _verdict(test_set: SetComparison, contrast: Contrast | None) -> Cell:
    if contrast is None:
        return Cell("no seed in common")
    unsure = test_set.num_speakers is None and contrast.verdict in ("better", "worse")
    return verdict_cell(contrast.verdict, "speakers unknown" if unsure else "")


def _to_baseline(test_set: SetComparison, row: Row) -> Cell:
    return Cell("baseline") if row.system == test_set.baseline else _verdict(test_set, row.to_baseline)


def _contrast_table(test_set: SetComparison, comparison: Comparison) -> Table:
    """Return how the systems differ from the baseline."""
    by_name = {row.system: row.to_baseline for row in test_set.rows if row.to_baseline is not None}
    return _contrasts(f"Compared with {test_set.baseline} (baseline)", test_set, comparison, by_name)


def _pair_table(test_set: SetComparison, comparison: Comparison) -> Table:
    """Return all pairs, if that was asked for."""
    pairs = {f"{pair.system} / {pair.other}": pair for pair in test_set.pairs}
    note = "A further question, whose verdicts are corrected for all these pairs and hold at a level of their own."
    return _contrasts("All pairs", test_set, comparison, pairs, note)


def _contrasts(
    title: str, test_set: SetComparison, comparison: Comparison, contrasts: Mapping[str, Contrast], note: str = ""
) -> Table:
    is_ratio, rate = comparison.scale == "ratio", test_set.rate_name
    shown, pairs = ratio if is_ratio else points, contrasts.values()
    size = f"{'ratio of errors' if is_ratio else 'points'} [{100 * comparison.level:g} %]"
    columns = {  # on a phone the first three fit beside the names
        SYSTEM: [Cell(system) for system in contrasts],
        Column("verdict", is_text=True): [_verdict(test_set, pair) for pair in pairs],
        Column(size): [contrast_cell(pair, comparison.scale) for pair in pairs],
    }
    if is_ratio:
        columns[Column(f"points of {rate}", in_terminal=False)] = [
            Cell(UNKNOWN if pair.points is None else points(pair.points)) for pair in pairs
        ]
    columns[Column("p (adjusted)")] = [Cell(p_value(pair.p_adjusted)) for pair in pairs]
    columns[Column("80 of 100 find")] = [
        Cell(UNKNOWN if pair.detectable is None else shown(pair.detectable)) for pair in pairs
    ]
    columns[Column("seeds")] = [Cell(str(pair.num_seeds) if test_set.has_seeds else UNKNOWN) for pair in pairs]
    if any(pair.matched_pairs_p is not None for pair in pairs):
        columns[Column("p (matched pairs)")] = [Cell(p_value(pair.matched_pairs_p)) for pair in pairs]
    what = (
        "Ratio of the geometric means over seeds: below 1, the system makes fewer errors."
        if is_ratio
        else f"Difference of the mean {rate}s."
    )
    found = f"80 of 100: the {'ratio' if is_ratio else 'difference'} that 80 of 100 such comparisons would find."
    return Table.of(title, columns, [f"{note} {what} {found}".strip()])


def _weights_table(comparison: Comparison, test_set: SetComparison) -> Table:
    """Return the WERs of the seeds by kind of weights; without rows if there is only one kind."""
    wers: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for row in test_set.rows:
        runs = [run.wers_by_weights for run in comparison.runs_of(row.system) if run.seed in row.seeds]
        for kind in runs[0] if runs else ():
            if all(test_set.name in run.get(kind, {}) for run in runs):
                wers[kind][row.system] = [run[kind][test_set.name] for run in runs]
    systems = [row.system for row in test_set.rows if len(wers) > 1]
    columns = {SYSTEM: [Cell(system) for system in systems]}
    for kind, by_system in wers.items():
        groups = [by_system.get(system, []) for system in systems]
        columns[Column(f"{kind} {test_set.rate_name} %")] = [
            mean_cell(statistics.mean(group) if group else None, statistics.stdev(group) if len(group) > 1 else None)
            for group in groups
        ]
    note = (
        "Means over seeds ± sd. Best: the checkpoint that was best on dev. Last: the newest. Average: the mean of the "
        "weights over about the last third of training."
    )
    return Table.of("With other weights", columns, [note])


def _part_table(column: str, parts: Sequence[SetComparison], comparison: Comparison) -> Table:
    """Return the rates of all systems on each part of a set."""
    rows = [(part, row) for part in parts for row in part.rows]
    columns = {
        SYSTEM: [Cell(f"{part.name}: {row.system}") for part, row in rows],
        Column("may be best", is_text=True): [Cell("yes" if row.may_be_best else "no") for _, row in rows],
        Column("vs. baseline", is_text=True): [_to_baseline(part, row) for part, row in rows],
        Column(f"{comparison.rate_name} %"): [mean_cell(row.wer_mean, row.wer_sd) for _, row in rows],
        Column(f"{100 * comparison.level:g} % interval"): [
            Cell(interval(row.low, row.high), row.scope) for _, row in rows
        ],
        Column("size"): [Cell(count(part.num_utterances, "utterance")) for part, _ in rows],
    }
    note = "Verdicts are corrected for the systems of each part, not for the number of parts."
    return Table.of(f"By {column}", columns, [note])


def run_table(comparison: Comparison) -> Table:
    """Return every run with its folder, by system and seed."""
    runs = [
        run for system in comparison.systems for run in sorted(comparison.runs_of(system), key=lambda run: run.seed)
    ]
    columns = {
        SYSTEM: [Cell(run.system) for run in runs],
        Column("seed"): [Cell(str(run.seed) if comparison.has_seeds else UNKNOWN) for run in runs],
        Column("lr"): [Cell(number(run.lr)) for run in runs],
    }
    for test_set in comparison.sets:
        results = [run.sets.get(test_set.name) for run in runs]
        columns[Column(f"{comparison.rate_name} % on {test_set.name}")] = [
            Cell(UNKNOWN) if errors is None else Cell(percent(errors.wer), "" if errors.has_learned else "not learned")
            for errors in results
        ]
    columns[Column("folder", is_text=True)] = [Cell(str(run.folder)) for run in runs]
    return Table.of("All runs", columns)


def what_verdicts_are_about(comparison: Comparison) -> str:
    """Return whether verdicts are about settings, or about the way in which they were tuned."""
    if not comparison.has_seeds:
        return (
            "These are single runs: another run of the same system, with another seed, may have another error rate, "
            "and change the order of the systems."
        )
    tuned: dict[str, set[int]] = defaultdict(set)
    for run in comparison.runs:
        if run.study is not None:
            tuned[run.system].add(run.study)
    studies = min(map(len, tuned.values()), default=0)
    if studies > 1:
        return (
            f"Tuned systems were tuned anew in each of {studies} studies: their verdicts are about this way of tuning, "
            "including its luck."
        )
    if studies:
        return (
            "Verdicts are about the settings that one tuning has chosen: another tuning may choose others, and change "
            "the order of the systems. sweep.studies=5 includes this in the verdicts."
        )
    return (
        "Verdicts are about these settings only: with other settings the order of the systems may change"
        f"{' (asr-train -m sweep=optimizers tunes all in the same way)' * comparison.is_of_our_runs}."
    )
