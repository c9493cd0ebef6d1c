"""Tables of how soon systems reached a WER on the development sets, and of that WER at equal time."""

from __future__ import annotations

from collections.abc import Callable

from asr.compare.report.other_pairs import other_pairs_sentence
from asr.compare.report.tables import SYSTEM, TONES, Cell, Column, Table
from asr.compare.result import Comparison
from asr.compare.speed import EqualTime, SeedContrast, Target, TimesToTarget
from asr.evaluation.formatting import (
    UNKNOWN,
    count,
    duration,
    number,
    p_value,
    percent,
    points,
    points_interval,
)


def speed_tables(comparison: Comparison) -> list[Table]:
    """Return times to the target, if there is one, and WERs at equal time, if the runs logged times."""
    tables, level, rate_name = [], comparison.level, comparison.rate_name
    if comparison.target is not None:
        tables = [_time_table(times, comparison.target, level, rate_name) for times in comparison.times]
    equal = comparison.equal_time
    return tables if equal is None else [*tables, _progress_table(equal, level, rate_name)]


def _time_table(times: TimesToTarget, target: Target, level: float, rate_name: str) -> Table:
    shown, what = (duration, "Time") if times.axis == "seconds" else (number, "Updates")
    rows, are_all = [], True
    for row in times.rows:
        has_all = row.num_reached == row.num_runs
        cells = [f"{row.num_reached} of {row.num_runs}", f"{'' if has_all else '≥ '}{shown(row.mean)}"]
        rows.append([Cell(row.system), *map(Cell, cells), *_contrast_cells(times, row.system, row.contrast, _ratio)])
        are_all = are_all and has_all
    columns = [SYSTEM, Column("reached by"), Column(what.lower()), *_contrast_columns(times, "ratio", level)]
    notes = ["Geometric means over seeds.", *_about_contrasts(times, "Ratio", level)]
    if not are_all:
        budget = f"{shown(times.budget)}{' updates' if times.axis == 'updates' else ''}"
        notes.append(
            f"≥: not every run reached it within the {budget} that all had; those that did not count with that, in "
            "ratios too."
        )
    when = "fixed before" if target.is_fixed else "chosen after the runs"
    return Table(f"{what} to {100 * target.wer:g} % {rate_name} on dev ({when})", columns, rows, [" ".join(notes)])


def _progress_table(equal: EqualTime, level: float, rate_name: str) -> Table:
    rows = [
        [
            Cell(row.system),
            _spread(row.wer_mean, row.wer_sd),
            *_contrast_cells(equal, row.system, row.contrast, _points),
            Cell(percent(row.area)),
            Cell(percent(row.area_sd)),
            Cell(str(row.num_runs)),
        ]
        for row in equal.rows
    ]
    contrast_columns = _contrast_columns(equal, "points", level)
    columns = [SYSTEM, Column(f"{rate_name} % on dev"), *contrast_columns, Column(f"mean {rate_name} %")]
    notes = [
        "Training time includes the optimizer's own, not validations; a slower run is not at the end of its schedule.",
        *_about_contrasts(equal, "Difference", level),
        f"Mean {rate_name}: over the updates that all runs had (area under the curve), from 100 % at the start.",
    ]
    if equal.num_earlier:
        notes.append(
            f"{count(equal.num_earlier, 'run')} had the last validation before, and count with its {rate_name}."
        )
    title = f"After {duration(equal.seconds)} of training"
    columns += [Column(name, in_terminal=False) for name in ("± sd", "seeds")]
    return Table(title, columns, rows, [" ".join(notes)])


def _contrast_columns(found: TimesToTarget | EqualTime, name: str, level: float) -> list[Column]:
    # at equal time there are more numbers, and the verdict says whether p is small
    p = Column("p (adjusted)", in_terminal=isinstance(found, TimesToTarget))
    return [Column(f"{name} [{100 * level:g} %]"), p, Column("verdict", is_text=True)] if len(found.rows) > 1 else []


def _contrast_cells(
    found: TimesToTarget | EqualTime,
    system: str,
    contrast: SeedContrast | None,
    shown: Callable[[SeedContrast], Cell],
) -> list[Cell]:
    if len(found.rows) == 1:
        return []
    if contrast is None:
        return [Cell(UNKNOWN), Cell(UNKNOWN), Cell("reference" if system == found.reference else "not compared")]
    verdict = Cell(contrast.verdict, tone=TONES.get(contrast.verdict, "even"))
    return [shown(contrast), Cell(p_value(contrast.p_adjusted)), verdict]


def _about_contrasts(found: TimesToTarget | EqualTime, what: str, level: float) -> list[str]:
    if len(found.rows) == 1:
        return []
    return [
        f"{what}: to {found.reference}. Intervals cover other seeds on the same development sets, all tested pairs "
        f"together with {100 * level:g} %.",
        *other_pairs_sentence(found.pairs, {found.reference}, has_table=False),
    ]


def _ratio(found: SeedContrast) -> Cell:
    return Cell(f"{found.value:.2f}", "" if found.p_adjusted is None else f"[{found.low:.2f}, {found.high:.2f}]")


def _points(found: SeedContrast) -> Cell:
    return Cell(points(found.value), "" if found.p_adjusted is None else points_interval(found.low, found.high))


def _spread(mean: float, sd: float | None) -> Cell:
    return Cell(percent(mean), "" if sd is None else f"± {percent(sd)}")
