"""The tables of a report, ready to be shown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from asr.evaluation.comparison.headline import best_of
from asr.evaluation.comparison.result import Comparison, Difference, Row, SetComparison, Verdict
from asr.evaluation.comparison.runs import Cost
from asr.evaluation.comparison.wording import (
    UNKNOWN,
    detectable,
    duration,
    interval,
    number,
    p_value,
    percent,
    points,
    points_interval,
)

TONES: Mapping[Verdict, str] = {
    "better": "good",
    "worse": "bad",
    "cannot distinguish": "even",
    "one seed: not compared": "even",
}


@dataclass(frozen=True)
class Cell:
    """One field of a table.

    Attributes:
        text: in it.
        detail: below it, smaller.
        tone: of a verdict; empty for other fields.
    """

    text: str
    detail: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows.

    Attributes:
        title: of the table.
        columns: names of the columns.
        rows: of cells, as many as there are columns.
        words: columns that hold words, and are aligned like words.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Sequence[str] = ()


def wer_table(found: SetComparison, level: float) -> Table:
    """Return mean WERs with their spread, intervals and verdicts."""
    best = best_of(found)
    compared: list[tuple[str, Callable[[Row], Cell]]] = []
    if len(found.rows) > 1:
        compared.append(("against the best", lambda row: _verdict(row.to_best, "best" if row is best else "")))
    if len(found.rows) > 1 and found.baseline not in (None, best.contestant):
        own = found.baseline
        compared.append(
            ("against the baseline", lambda row: _verdict(row.to_baseline, "baseline" if row.contestant == own else ""))
        )
    columns = ("contestant", "WER %", *(name for name, _ in compared), f"{100 * level:g} % interval", "seeds")
    rows = [
        [
            Cell(row.contestant),
            Cell(percent(row.wer_mean), "" if row.wer_sd is None else f"± {percent(row.wer_sd)}"),
            *(cell(row) for _, cell in compared),
            Cell(interval(row.low, row.high), row.scope),
            Cell(str(len(row.seeds))),
        ]
        for row in found.rows
    ]
    return Table("Word error rates", columns, rows, words=[name for name, _ in compared])


def difference_tables(found: SetComparison, level: float) -> list[Table]:
    """Return differences to the best and, unless it is the same, to the baseline."""
    best = best_of(found).contestant
    what = "the best and the baseline" if best == found.baseline else "the best"
    tables = [_differences(f"Minus {best}, {what}", found, level, lambda row: row.to_best)]
    if found.baseline not in (None, best):
        tables.append(_differences(f"Minus {found.baseline}, the baseline", found, level, lambda row: row.to_baseline))
    return [table for table in tables if table.rows]


def _differences(title: str, found: SetComparison, level: float, pick: Callable[[Row], Difference | None]) -> Table:
    columns = (
        "contestant",
        "verdict",
        f"points [{100 * level:g} %]",
        "p (Holm)",
        "P(lower WER)",
        "detectable",
        "seeds",
    )
    rows = []
    for row in found.rows:
        difference = pick(row)
        if difference is not None:
            rows.append([Cell(row.contestant), *_difference_cells(difference)])
    return Table(title, columns, rows, words=["verdict"])


def _difference_cells(found: Difference) -> list[Cell]:
    probability = found.probability_of_improvement
    return [
        _verdict(found, ""),
        Cell(points(found.mean), points_interval(found.low, found.high)),
        Cell(p_value(found.p_adjusted)),
        Cell(UNKNOWN if probability is None else f"{probability:.2f}"),
        Cell(detectable(found.smallest_detectable)),
        Cell(str(found.num_seeds)),
    ]


def _verdict(found: Difference | None, own: str) -> Cell:
    if found is None:
        return Cell(own or "no seed in common")
    return Cell(found.verdict, tone=TONES[found.verdict])


def target_table(comparison: Comparison) -> Table | None:
    """Return how soon each contestant reached the target; None without one."""
    times = comparison.times_to_target()
    if comparison.target_wer is None or not times:
        return None
    rows = [
        [
            Cell(name),
            Cell(f"{time.num_reached} of {len(comparison.runs_of(name))}"),
            Cell(number(time.updates)),
            Cell(duration(time.seconds)),
        ]
        for name, time in times.items()
    ]
    title = f"Time to {100 * comparison.target_wer:g} % WER on dev"
    return Table(title, ("contestant", "runs that reached it", "updates", "time of training"), rows)


def cost_table(comparison: Comparison, contestants: Sequence[str]) -> Table:
    """Return what the trainings of each contestant took: medians over its runs."""
    columns: Mapping[str, Callable[[Cost], float | None]] = {
        "updates": lambda cost: cost.num_updates,
        "parameters": lambda cost: cost.num_parameters,
        "seconds per update": lambda cost: cost.seconds_per_update,
        "optimizer's share %": lambda cost: None if cost.optimizer_share is None else 100 * cost.optimizer_share,
        "state bytes per parameter": _state_per_parameter,
        "peak memory MB": lambda cost: cost.peak_memory_mb,
    }
    rows = []
    for name in contestants:
        costs = [run.cost for run in comparison.runs_of(name)]
        medians = [Cell(number(_median([pick(cost) for cost in costs]))) for pick in columns.values()]
        rows.append([Cell(name), *medians, Cell(duration(_median([cost.seconds for cost in costs])))])
    return Table("What the trainings took", ("contestant", *columns, "time of training"), rows)


def run_table(comparison: Comparison, contestants: Sequence[str]) -> Table:
    """Return every run with its folder, by contestant and seed."""
    sets = [found.name for found in comparison.sets]
    rows = [
        [
            Cell(run.contestant),
            Cell(str(run.seed)),
            Cell(number(run.lr)),
            *(Cell(percent(run.sets[tested].wer) if tested in run.sets else UNKNOWN) for tested in sets),
            Cell(str(run.folder)),
        ]
        for name in contestants
        for run in sorted(comparison.runs_of(name), key=lambda run: run.seed)
    ]
    columns = ("contestant", "seed", "learning rate", *(f"WER % on {name}" for name in sets), "folder")
    return Table("All runs", columns, rows, words=["folder"])


def _state_per_parameter(cost: Cost) -> float | None:
    if cost.optimizer_state_bytes is None or not cost.num_parameters:
        return None
    return cost.optimizer_state_bytes / cost.num_parameters


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
