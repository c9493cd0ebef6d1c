"""Tables of WERs with other weights than those of the result: best on dev, last, or averaged."""

from __future__ import annotations

import statistics
from collections import defaultdict

from asr.compare.report.tables import SYSTEM, Cell, Column, Table
from asr.compare.result import Comparison, SetComparison
from asr.evaluation.formatting import UNKNOWN, percent, shortlist


def weights_tables(comparison: Comparison) -> dict[str, Table]:
    """Return a table by test set on which all runs of a system were decoded with several kinds of weights."""
    tables = {}
    for found in comparison.sets:
        wers = _wers(comparison, found)
        if len(wers) > 1:
            tables[found.name] = _table(found, wers)
    return tables


def _wers(comparison: Comparison, found: SetComparison) -> dict[str, dict[str, list[float]]]:
    """Return the WERs of the seeds, by kind of weights and system, if all runs of the system have them."""
    wers: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for row in found.rows:
        runs = [run.wers_by_weights for run in comparison.runs_of(row.system) if run.seed in row.seeds]
        for kind in runs[0]:
            if all(found.name in run.get(kind, {}) for run in runs):
                wers[kind][row.system] = [run[kind][found.name] for run in runs]
    return wers


def _table(found: SetComparison, wers: dict[str, dict[str, list[float]]]) -> Table:
    rows = [[Cell(row.system), *(_cell(wers[kind].get(row.system)) for kind in wers)] for row in found.rows]
    columns = [SYSTEM, *(Column(f"{kind} {found.rate_name} %") for kind in wers)]
    note = (
        "Means over seeds ± sd. Best: the checkpoint that was best on dev. Last: the newest. Average: the mean of the "
        "weights over about the last third of training."
    )
    return Table("With other weights", columns, rows, [note, *_order(found, wers)])


def _cell(wers: list[float] | None) -> Cell:
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
