"""Speed, time and memory of the systems, as plain data."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from asr.compare.inputs.runs import Cost
from asr.compare.report.headline import other_pairs_sentence
from asr.compare.report.tables import SYSTEM, TONES, Cell, Column, Table
from asr.compare.result import Comparison, EqualTime, SeedContrast, Target, TimesToTarget
from asr.evaluation.formatting import (
    UNKNOWN,
    count,
    duration,
    number,
    p_value,
    percent,
    points,
    points_interval,
    shortlist,
)


def cost_table(comparison: Comparison) -> Table:
    """Return time and memory of each system: medians over its runs."""
    medians: Mapping[Column, Callable[[Cost], float | None]] = {
        Column("updates"): lambda cost: cost.num_updates,
        Column("parameters", in_terminal=False): lambda cost: cost.num_parameters,
        Column("seconds per update"): lambda cost: cost.seconds_per_update,
        Column("optimizer time %"): lambda cost: None if cost.optimizer_share is None else 100 * cost.optimizer_share,
        Column("state bytes per parameter"): _state_per_parameter,
        Column("peak memory MB"): lambda cost: cost.peak_memory_mb,
    }
    rows = []
    for name in comparison.systems:
        runs = comparison.runs_of(name)
        rates, costs = {run.lr for run in runs}, [run.cost for run in runs]
        lr = number(rates.pop()) if len(rates) == 1 else "several"
        cells = [Cell(number(_median([pick(cost) for cost in costs]))) for pick in medians.values()]
        time = Cell(duration(_median([cost.seconds for cost in costs])))
        rows.append([Cell(name), Cell(lr), *cells, _step_ms(costs), time])
    columns = [SYSTEM, Column("lr"), *medians, Column("optimizer step ms", in_terminal=False), Column("training time")]
    notes = [
        "Medians over the runs that measured them. Times of a run are means over its updates; optimizer steps ± sd."
    ]
    return Table("Training cost", columns, rows, notes)


def _step_ms(costs: Sequence[Cost]) -> Cell:
    mean, sd = (
        _median([None if value is None else 1000 * value for value in values])
        for values in zip(*((cost.optimizer_step_seconds, cost.optimizer_step_sd) for cost in costs), strict=True)
    )
    return Cell(number(mean), "" if sd is None else f"± {number(sd)}")


def _state_per_parameter(cost: Cost) -> float | None:
    if cost.optimizer_state_bytes is None or not cost.num_parameters:
        return None
    return cost.optimizer_state_bytes / cost.num_parameters


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def overall(comparison: Comparison) -> list[str]:
    """Return sentences on speed, memory and tuning, which do not depend on a test set."""
    costs = {name: [run.cost for run in comparison.runs_of(name)] for name in comparison.systems}
    seconds = {name: _median([cost.seconds for cost in own]) for name, own in costs.items()}
    memory = {name: _median([_state_per_parameter(cost) for cost in own]) for name, own in costs.items()}
    return [
        *_soonest(comparison),
        *_extremes("Training time", seconds, duration),
        *_extremes("Memory of the optimizer", memory, lambda value: f"{number(value)} bytes per parameter"),
        _scope(comparison),
    ]


def _soonest(comparison: Comparison) -> list[str]:
    found = [times for times in comparison.times if times.axis == "updates" and len(times.rows) > 1]
    if not found or comparison.target is None or not found[0].rows[0].num_reached:
        return []
    first, *others = found[0].rows
    least = "at least " if first.num_reached < first.num_runs else ""
    reference = found[0].reference
    # each is compared with the reference alone
    compared = {row.system: row for row in others} if first.system == reference else {reference: first}
    sure = {name for name, row in compared.items() if row.contrast and row.contrast.verdict in ("better", "worse")}
    unsure = [name for name in compared if name not in sure]
    tie = f", which cannot be distinguished from {shortlist(unsure)}" if unsure else ""
    return [
        f"First at {percent(comparison.target.wer)} % {comparison.rate_name} on dev: {first.system}{tie}, after "
        f"{least}{number(first.mean)} updates on average ({first.num_reached} of {first.num_runs} runs)."
    ]


def _extremes(what: str, values: Mapping[str, float | None], shown: Callable[[float], str]) -> list[str]:
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < 2:
        return []
    least, most = min(known, key=lambda name: known[name]), max(known, key=lambda name: known[name])
    if shown(known[least]) == shown(known[most]):
        return []
    return [f"{what}: least {least}, {shown(known[least])}; most {most}, {shown(known[most])}."]


def _scope(comparison: Comparison) -> str:
    """Return whether verdicts are about settings, or about the way in which they were tuned."""
    tuned: dict[str, set[float]] = defaultdict(set)
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
        "Verdicts are about these settings only: with other settings the order of the systems may change (asr-train -m "
        "sweep=optimizers tunes all in the same way)."
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
    notes = ["Geometric means over seeds.", *_about_contrasts(times, "Ratios are to", level)]
    if not are_all:
        budget = f"{shown(times.budget)}{' updates' if times.axis == 'updates' else ''}"
        notes.append(
            f"≥: not every run reached it within the {budget} that all had; a run that did not counts as {budget}, in "
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
        "Training time includes the optimizer's steps, not validations; slower runs have not finished their schedule.",
        *_about_contrasts(equal, "Differences are from", level),
        f"Mean {rate_name}: over the updates that all runs had (area under the curve), from 100 % at the start.",
    ]
    if equal.num_earlier:
        notes.append(
            f"{count(equal.num_earlier, 'run')} had the last validation earlier, and count with its {rate_name}."
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
        f"{what} {found.reference}. Intervals cover other seeds on the same development sets, and hold for all "
        f"tested pairs together with {100 * level:g} %.",
        *other_pairs_sentence(found.pairs, {found.reference}, has_table=False),
    ]


def _ratio(found: SeedContrast) -> Cell:
    return Cell(f"{found.value:.2f}", "" if found.p_adjusted is None else f"[{found.low:.2f}, {found.high:.2f}]")


def _points(found: SeedContrast) -> Cell:
    return Cell(points(found.value), "" if found.p_adjusted is None else points_interval(found.low, found.high))


def _spread(mean: float, sd: float | None) -> Cell:
    return Cell(percent(mean), "" if sd is None else f"± {percent(sd)}")
