"""A plot of the WER against the learning rate, for systems that differ only in it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asr.compare.inputs.runs import Run
from asr.compare.plots import drawing
from asr.compare.plots.line_styles import PAPER, LineStyle
from asr.compare.result import Row, SetComparison
from asr.evaluation.formatting import number, percent, shortened

CAPTION = (
    "Line: mean over the seeds. Small markers: the seeds. Large open marker: the lowest mean on this test set. With "
    "more rates a system has more chances, so choose rates on dev."
)


def family_of(system: str) -> str:
    """Return the name of a system without its learning rate: ``eve`` for ``eve lr=0.01``."""
    return " ".join(word for word in system.split() if not word.startswith("lr="))


def families(rows: Sequence[Row], runs: Mapping[str, Sequence[Run]]) -> dict[str, list[tuple[float, Row]]]:
    """Return learning rates and rows of every family that has several rates, by rate.

    A system whose runs have no rate, or different ones, is left out.
    """
    found: dict[str, list[tuple[float, Row]]] = defaultdict(list)
    for row in rows:
        rates = {run.lr for run in runs[row.system]}
        rate = rates.pop() if len(rates) == 1 else None
        if rate is not None and math.isfinite(rate) and rate > 0:
            found[family_of(row.system)].append((rate, row))
    return {
        family: sorted(members, key=lambda member: member[0])
        for family, members in found.items()
        if len({rate for rate, _ in members}) > 1
    }


def plot_learning_rates(
    found: SetComparison, runs: Mapping[str, Sequence[Run]], styles: Mapping[str, LineStyle]
) -> drawing.Plot | None:
    """Draw a line per family with its best rate marked; None if no family has several rates."""
    lines = families(found.rows, runs)
    if not lines:
        return None
    title = f"{found.rate_name} on {shortened(found.name, 24)} against learning rate"
    name, names = f"lr_{found.name}", list(lines)

    def fill(figure: Figure) -> None:
        axes = drawing.single_axes(figure, title)
        axes.set_xscale("log")
        handles = [_add(axes, members, styles[_best(members)[1].system]) for members in lines.values()]
        _label(axes, [member for members in lines.values() for member in members], found.rate_name)
        drawing.add_legend(figure, handles, names)

    png, svg = drawing.draw(name, drawing.height_with_legend(names), fill)
    return drawing.Plot(name, CAPTION, _alt(title, lines), png, svg)


def _add(axes: Axes, members: Sequence[tuple[float, Row]], style: LineStyle) -> Line2D:
    for rate, row in members:
        seeds = [100 * wer for wer in row.wers]
        axes.plot([rate] * len(seeds), seeds, style.marker, color=style.color.light, markersize=3.5, alpha=0.55)
    means = [100 * row.wer_mean for _, row in members]
    (line,) = axes.plot(
        [rate for rate, _ in members], means, **drawing.line_options(style, marker=style.marker, markersize=6)
    )
    rate, row = _best(members)
    ring: dict[str, Any] = {"markeredgecolor": style.color.light, "markeredgewidth": 2}
    axes.plot([rate], [100 * row.wer_mean], style.marker, markersize=10, markerfacecolor=PAPER.light, **ring)
    return line


def _label(axes: Axes, members: Sequence[tuple[float, Row]], rate_name: str) -> None:
    wers = [100 * wer for _, row in members for wer in row.wers]
    rates = [rate for rate, _ in members]
    if drawing.is_wide(wers):
        axes.set_yscale("log")
        drawing.log_axis(axes.yaxis, min(wers), max(wers))
    drawing.log_axis(axes.xaxis, min(rates), max(rates))
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"{rate_name} (%)")


def _best(members: Sequence[tuple[float, Row]]) -> tuple[float, Row]:
    return min(members, key=lambda member: member[1].wer_mean)


def _alt(title: str, lines: Mapping[str, Sequence[tuple[float, Row]]]) -> str:
    parts = []
    for family, members in lines.items():
        shown = ", ".join(f"{number(rate)}: {percent(row.wer_mean)} %" for rate, row in members)
        parts.append(f"{family} {shown} (best {number(_best(members)[0])})")
    return f"{title}. {'; '.join(parts)}."
