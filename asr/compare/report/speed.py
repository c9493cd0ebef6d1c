"""Speed, time and memory of the systems."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from asr.compare.inputs.runs import Run
from asr.compare.report.headline import times_sentence
from asr.compare.report.tables import SYSTEM, Cell, Column, Table, contrast_cell, mean_cell, verdict_cell
from asr.compare.result import Comparison, Contrast, EqualTime, Scale, Target, TimesToTarget
from asr.evaluation.formatting import UNKNOWN, count, duration, number, p_value, percent


def cost_table(comparison: Comparison) -> Table:
    """Return time and memory of each system: medians over its runs."""
    rows = []
    for name in comparison.systems:
        runs = comparison.runs_of(name)
        rates = {run.lr for run in runs}
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
    return [*speed_tables(comparison), cost_table(comparison)]


def speed_tables(comparison: Comparison) -> list[Table]:
    """Return times to the target, if there is one, and WERs at equal time, if the runs logged times."""
    tables = []
    if comparison.target is not None:
        tables = [_time_table(times, comparison, comparison.target) for times in comparison.times]
    equal = comparison.equal_time
    return tables if equal is None else [*tables, _progress_table(equal, comparison)]


def _time_table(times: TimesToTarget, comparison: Comparison, target: Target) -> Table:
    shown, quantity = (duration, "Time") if times.axis == "seconds" else (number, "Updates")
    rows, are_all = [], all(row.num_reached == row.num_runs for row in times.rows)
    for row in times.rows:
        least = "" if row.num_reached == row.num_runs else "≥ "
        cells = Cell(f"{row.num_reached} of {row.num_runs}"), Cell(f"{least}{shown(row.mean)}")
        verdict, numbers = _contrast_cells(times, row.system, row.contrast, "ratio")
        rows.append([Cell(row.system), *verdict, *cells, *numbers])
    verdict_column, number_columns = _contrast_columns(times, "ratio", comparison.level)
    columns = [SYSTEM, *verdict_column, Column("reached by"), Column(quantity.lower()), *number_columns]
    notes = [times_sentence(times), "Geometric means over seeds.", *_about_contrasts(times, comparison.level)]
    if not are_all:
        budget = f"{shown(times.budget)}{' updates' if times.axis == 'updates' else ''}"
        notes.append(
            f"≥: not every run reached it within the {budget} that all had; a run that did not counts as {budget}, in "
            "ratios too."
        )
    when = "fixed before" if target.is_fixed else "chosen after the runs"
    title = f"{quantity} to {100 * target.wer:g} % {comparison.rate_name} on dev ({when})"
    return Table(title, columns, rows, [" ".join(notes)])


def _progress_table(equal: EqualTime, comparison: Comparison) -> Table:
    rows, rate_name, scale = [], comparison.rate_name, comparison.scale
    for row in equal.rows:
        verdict, numbers = _contrast_cells(equal, row.system, row.contrast, scale)
        area = Cell(percent(row.area)), Cell(percent(row.area_sd)), Cell(str(row.num_runs))
        rows.append([Cell(row.system), *verdict, mean_cell(row.wer_mean, row.wer_sd), *numbers, *area])
    verdict_column, number_columns = _contrast_columns(equal, scale, comparison.level)
    columns = [SYSTEM, *verdict_column, Column(f"{rate_name} % on dev"), *number_columns]
    columns += [Column(f"mean {rate_name} %"), *(Column(name, in_terminal=False) for name in ("± sd", "seeds"))]
    notes = [
        "Training time includes the optimizer's steps, not validations; slower runs have not finished their schedule.",
        *_about_contrasts(equal, comparison.level),
        f"Mean {rate_name}: over the updates that all runs had (area under the curve), from 100 % at the start.",
    ]
    if equal.num_earlier:
        notes.append(
            f"{count(equal.num_earlier, 'run')} had the last validation earlier, and count with its {rate_name}."
        )
    return Table(f"After {duration(equal.seconds)} of training", columns, rows, [" ".join(notes)])


def _contrast_columns(
    times: TimesToTarget | EqualTime, name: str, level: float
) -> tuple[Sequence[Column], Sequence[Column]]:
    """Return the columns of a verdict and of its numbers; none if there is nothing to compare."""
    if len(times.rows) == 1:
        return (), ()
    # at equal time there are more numbers, and the verdict says whether p is small
    p = Column("p (adjusted)", in_terminal=isinstance(times, TimesToTarget))
    return [Column("verdict", is_text=True)], [Column(f"{name} [{100 * level:g} %]"), p]


def _contrast_cells(
    times: TimesToTarget | EqualTime, system: str, contrast: Contrast | None, scale: Scale
) -> tuple[Sequence[Cell], Sequence[Cell]]:
    """Return the cells of ``_contrast_columns``."""
    if len(times.rows) == 1:
        return (), ()
    if contrast is None:
        return [Cell("reference" if system == times.reference else "not compared")], [Cell(UNKNOWN), Cell(UNKNOWN)]
    numbers = contrast_cell(contrast, scale), Cell(p_value(contrast.p_adjusted))
    return [verdict_cell(contrast.verdict)], numbers


def _about_contrasts(times: TimesToTarget | EqualTime, level: float) -> list[str]:
    if len(times.rows) == 1:
        return []
    return [
        f"Compared with {times.reference}. Intervals and verdicts cover other seeds on the same development sets, and "
        f"are corrected for the number of systems ({100 * level:g} %)."
    ]
