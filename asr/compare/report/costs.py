"""Time and memory of the systems, and what must be known beside all test sets, as plain data."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from asr.compare.inputs.runs import Cost
from asr.compare.report.tables import SYSTEM, Cell, Column, Table
from asr.compare.result import Comparison
from asr.evaluation.formatting import duration, number, percent, shortlist


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
        "Medians over the runs that measured them; a run counts all its updates, and all steps of the optimizer ± sd."
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
    """Return sentences on speed, memory and tuning, which are no matter of a test set."""
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
    tie = f", which is not told from {shortlist(unsure)}" if unsure else ""
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
            f"Tuned systems were tuned in {studies} studies of their own: their verdicts are about this way of tuning, "
            "its luck included."
        )
    if studies:
        return (
            "Verdicts are about the settings that one tuning has chosen: another may choose others, and with them "
            "another order of systems. sweep.studies=5 takes that in."
        )
    return (
        "Verdicts are about these settings alone: tuned otherwise, systems may come in another order (asr-train -m "
        "sweep=optimizers tunes them alike)."
    )
