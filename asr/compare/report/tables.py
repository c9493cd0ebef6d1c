"""The tables and sentences of a report as plain data; ``terminal`` and ``html`` show the same ones."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from asr.compare.report.headline import best_of, chosen_best, headline, other_pairs, what_is_found
from asr.compare.result import Comparison, Difference, Reliability, Row, SetComparison, Verdict
from asr.evaluation.formatting import (
    UNKNOWN,
    count,
    interval,
    number,
    p_value,
    percent,
    points,
    points_interval,
    shortlist,
)

TONES: Mapping[Verdict, str] = {"better": "good", "worse": "bad"}


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
        tone: of a verdict: good, bad or even; empty for other fields.
    """

    text: str
    detail: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows.

    Attributes:
        columns: of the table.
        rows: of cells, one per column.
        notes: sentences below the table.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class SetSection:
    """What a report says of one test set.

    Attributes:
        size: in words.
        headline: sentences, the most important one first.
        tables: WERs, runs that have not learned, differences between systems, and WERs with other weights.
    """

    name: str
    size: str
    headline: Sequence[str]
    tables: Sequence[Table]


SYSTEM = Column("system", is_text=True)


def set_sections(comparison: Comparison) -> list[SetSection]:
    """Return a section per test set."""
    sections = []
    for found in comparison.sets:
        speakers = "unknown speakers" if found.num_speakers is None else count(found.num_speakers, "speaker")
        tables = [
            wer_table(found, comparison.level),
            reliability_table(found),
            *difference_tables(found, comparison.level),
            weights_table(comparison, found),
        ]
        sections.append(
            SetSection(
                found.name,
                f"{count(found.num_utterances, 'utterance')}, {speakers}",
                headline(found, comparison.level),
                [table for table in tables if table is not None],
            )
        )
    return sections


def wer_table(found: SetComparison, level: float) -> Table:
    """Return mean WERs with their spread, intervals and verdicts."""
    best, columns, verdicts = best_of(found).system, [], list[Callable[[Row], Cell]]()
    # the tables of differences repeat the verdicts
    if len(found.rows) > 1:
        columns.append(Column("vs. best", is_text=True, in_terminal=False))
        verdicts.append(lambda row: _verdict(found, row.to_best, "best" if row.system == best else ""))
    if len(found.rows) > 1 and found.baseline not in (None, best):
        columns.append(Column("vs. baseline", is_text=True, in_terminal=False))
        verdicts.append(
            lambda row: _verdict(found, row.to_baseline, "baseline" if row.system == found.baseline else "")
        )
    rows = [
        [
            Cell(row.system),
            Cell(percent(row.wer_mean), "" if row.wer_sd is None else f"± {percent(row.wer_sd)}"),
            *(verdict(row) for verdict in verdicts),
            Cell(interval(row.low, row.high), row.scope),
            Cell(str(len(row.seeds))),
        ]
        for row in found.rows
    ]
    columns = [SYSTEM, Column(f"{found.rate_name} %"), *columns, Column(f"{100 * level:g} % interval"), Column("seeds")]
    chosen = chosen_best(found)
    notes = [f"Each interval holds by itself; that of {best} is {chosen}."] if chosen else []
    return Table(f"{found.unit.capitalize()} error rates", columns, rows, notes)


def reliability_table(found: SetComparison) -> Table | None:
    """Return how many runs learned; None if all did."""
    systems: list[tuple[str, Reliability, float | None, float | None]] = [
        (row.system, row.reliability, row.wer_mean, row.wer_mean_of_all) for row in found.rows
    ]
    systems += [(name, reliability, None, None) for name, reliability in found.gone.items()]
    if all(one.num_learned == one.num_runs for _, one, *_ in systems):
        return None
    rows = [
        [
            Cell(name),
            Cell(f"{one.num_learned} of {one.num_runs}"),
            Cell(p_value(one.p_adjusted)),
            Cell(percent(mean)),
            Cell(percent(mean_of_all)),
        ]
        for name, one, mean, mean_of_all in systems
    ]
    rate = found.rate_name
    columns = [SYSTEM, *map(Column, ("learned", "p (Holm)", f"{rate} % of those", f"{rate} % of all"))]
    notes = [
        f"Learned: a {rate} below 100 %; a run that failed has not learned. p: Fisher's exact test against the most "
        "reliable system, corrected for all pairs."
    ]
    return Table("Runs that learned", columns, rows, notes)


def _verdict(found: SetComparison, difference: Difference | None, own: str) -> Cell:
    if difference is None:
        return Cell(own or "no seed in common")
    sure = difference.verdict in ("better", "worse")
    return Cell(
        difference.verdict,
        "speakers unknown" if sure and found.num_speakers is None else "",
        tone=TONES.get(difference.verdict, "even"),
    )


def difference_tables(found: SetComparison, level: float) -> list[Table]:
    """Return differences from the best and, unless it is the same system, the baseline; and other significant ones."""
    best = best_of(found).system
    role = "best and baseline" if best == found.baseline else "best"
    to_best = {row.system: row.to_best for row in found.rows}
    tables = [_differences(f"Difference from {best} ({role})", found, level, to_best)]
    if found.baseline not in (None, best):
        to_baseline = {row.system: row.to_baseline for row in found.rows}
        tables.append(_differences(f"Difference from {found.baseline} (baseline)", found, level, to_baseline))
    significant, others = other_pairs(found.pairs, {best, found.baseline})
    between = {f"{one.system} minus {one.other}": one for one in significant}
    note = f"Pairs without the best and the baseline; {len(others)} more cannot be distinguished."
    tables.append(_differences("Other pairs that differ significantly", found, level, between, note))
    return [table for table in tables if table.rows]


def _differences(
    title: str, found: SetComparison, level: float, differences: Mapping[str, Difference | None], note: str = ""
) -> Table:
    # on a phone the first two fit beside the names
    columns = (
        *(Column(f"points [{100 * level:g} %]"), Column("p (adjusted)"), Column("verdict", is_text=True)),
        *(Column(f"P(lower {found.rate_name})"), Column("seeds")),
    )
    rows = []
    for system, difference in differences.items():
        if difference is not None:
            probability = difference.probability_of_improvement
            cells = (
                Cell(points(difference.mean), points_interval(difference.low, difference.high)),
                Cell(p_value(difference.p_adjusted)),
                _verdict(found, difference, ""),
                Cell(UNKNOWN if probability is None else f"{probability:.2f}"),
                Cell(str(difference.num_seeds)),
            )
            rows.append([Cell(system), *cells])
    notes = [note] if note else [what_is_found(found.power)] if found.power else []
    return Table(title, [SYSTEM, *columns], rows, notes)


def weights_table(comparison: Comparison, found: SetComparison) -> Table | None:
    """Return the WERs with other weights than those of the result; None if there is only one kind of weights."""
    wers = _wers_by_weights(comparison, found)
    if len(wers) < 2:
        return None
    rows = [[Cell(row.system), *(_mean_cell(wers[kind].get(row.system)) for kind in wers)] for row in found.rows]
    columns = [SYSTEM, *(Column(f"{kind} {found.rate_name} %") for kind in wers)]
    note = (
        "Means over seeds ± sd. Best: the checkpoint that was best on dev. Last: the newest. Average: the mean of the "
        "weights over about the last third of training."
    )
    return Table("With other weights", columns, rows, [note, *_order(found, wers)])


def _wers_by_weights(comparison: Comparison, found: SetComparison) -> dict[str, dict[str, list[float]]]:
    """Return the WERs of the seeds, by kind of weights and system, if all runs of the system have them."""
    wers: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for row in found.rows:
        runs = [run.wers_by_weights for run in comparison.runs_of(row.system) if run.seed in row.seeds]
        for kind in runs[0]:
            if all(found.name in run.get(kind, {}) for run in runs):
                wers[kind][row.system] = [run[kind][found.name] for run in runs]
    return wers


def _mean_cell(wers: list[float] | None) -> Cell:
    if wers is None:
        return Cell(UNKNOWN)
    return Cell(percent(statistics.mean(wers)), f"± {percent(statistics.stdev(wers))}" if len(wers) > 1 else "")


def _order(found: SetComparison, wers: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return a sentence on whether the weights decide which system is better."""
    systems = [row.system for row in found.rows if all(row.system in own for own in wers.values())]
    if len(systems) < 2:
        return []
    orders = {kind: sorted(systems, key=lambda name: statistics.mean(own[name])) for kind, own in wers.items()}
    first, *others = orders
    changed = [kind for kind in others if orders[kind] != orders[first]]
    if not changed:
        return [f"The order of the systems by mean {found.rate_name} is the same with {', '.join(wers)}."]
    listed = "; ".join(f"with {kind}: {shortlist(orders[kind])}" for kind in (first, *changed))
    return [f"The order of the systems by mean {found.rate_name} depends on the weights: {listed}."]


def run_table(comparison: Comparison) -> Table:
    """Return every run with its folder, by system and seed."""
    sets = [found.name for found in comparison.sets]
    rows = [
        [
            Cell(run.system),
            Cell(str(run.seed)),
            Cell(number(run.lr)),
            *(Cell(percent(run.sets[tested].wer) if tested in run.sets else UNKNOWN) for tested in sets),
            Cell(str(run.folder)),
        ]
        for name in comparison.systems
        for run in sorted(comparison.runs_of(name), key=lambda run: run.seed)
    ]
    columns = [Column("seed"), Column("lr"), *(Column(f"{comparison.rate_name} % on {name}") for name in sets)]
    return Table("All runs", [SYSTEM, *columns, Column("folder", is_text=True)], rows)


def explanations(level: float, rate_name: str) -> Mapping[str, str]:
    """Return what the terms in the tables mean."""
    false_alarms = f"{100 * (1 - level):.3g}"
    return {
        "Interval": f"Another seed would give another {rate_name}, and so would other speakers. The interval covers "
        "both: the spread between seeds, and the spread among speakers that all seeds share (among utterances if "
        "speakers are unknown). With one seed it comes from resampling speakers or utterances (bootstrap) and covers "
        "this run only; another seed may be far outside.",
        "Difference": f"In points of {rate_name}, on the seeds that both systems have and on the same speakers, so "
        "that what is hard for both cancels out. Negative: the system is better.",
        "p (adjusted), verdict, interval of a difference": "Corrected for all pairs of systems that are tested on the "
        f"test set: at most {false_alarms} of 100 such test sets have any false verdict, or any interval that misses "
        "the true difference. A difference is significant if 0 is outside its interval, or is its end, and only then.",
        "Cannot distinguish": "This does not mean that two systems are equal: with more seeds their difference may be "
        "significant.",
        f"P(lower {rate_name})": f"Share of all pairs of seeds in which the system has the lower {rate_name}.",
        "80 of 100": "Larger differences are found more often, smaller ones less often; with more seeds all are. From "
        "the spread over seeds of all systems together, at the level of the first verdict.",
    }
