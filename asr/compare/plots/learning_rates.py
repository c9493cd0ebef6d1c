"""Plots of the WER against the learning rate: of systems that differ only in it, and of a tuning sweep's trials."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asr.compare.inputs.runs import Run
from asr.compare.inputs.tuning import Tuning
from asr.compare.plots import drawing
from asr.compare.plots.line_styles import PAPER, LineStyle
from asr.compare.result import Row, SetComparison
from asr.evaluation.formatting import number, percent, shortened

Point = tuple[float, float]  # learning rate and WER
FAMILIES = (
    "Line: mean over the seeds. Small markers: the seeds. Large open marker: the lowest mean on this test set. With "
    "more rates a system has more chances, so choose rates on dev."
)
TRIALS = (
    "Small markers: trials, which differ in other settings too. Large open marker: the chosen one; “edge” where its "
    "rate was the smallest or the largest that was tried, so that a better one may lie beyond."
)


@dataclass(frozen=True)
class Line:
    """WERs at several learning rates.

    Attributes:
        points: by rate.
        seeds: that ``points`` are means of; empty if each is a single run.
        chosen: the best of the points.
        at_edge: whether a better rate may lie beyond those that were tried.
    """

    style: LineStyle
    points: Sequence[Point]
    seeds: Sequence[Point]
    chosen: Point
    at_edge: bool = False


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
        if rate is not None and rate > 0:
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
    lines = {}
    for family, members in families(found.rows, runs).items():
        rate, best = min(members, key=lambda member: member[1].wer_mean)
        means = [(rate, row.wer_mean) for rate, row in members]
        seeds = [(rate, wer) for rate, row in members for wer in row.wers]
        lines[family] = [Line(styles[best.system], means, seeds, (rate, best.wer_mean))]
    title = f"{found.rate_name} on {shortened(found.name, 24)} against learning rate"
    shown = []
    for family, (line,) in lines.items():
        wers = ", ".join(f"{number(rate)}: {percent(wer)} %" for rate, wer in line.points)
        shown.append(f"{family} {wers} (best {number(line.chosen[0])})")
    alt = f"{title}. {'; '.join(shown)}."
    return _plot(f"lr_{found.name}", title, lines, f"{found.rate_name} (%)", FAMILIES, alt)


def plot_trials(tunings: Sequence[Tuning], styles: Mapping[str, LineStyle], rate_name: str) -> drawing.Plot | None:
    """Draw the trials of every system that is compared; None if there are none."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for tuning in tunings:
        trials = sorted(trial for trial in tuning.trials if math.isfinite(trial[1]))
        if tuning.system in styles and trials:
            chosen = tuning.chosen, min(wer for _, wer in trials)
            lines[tuning.system].append(Line(styles[tuning.system], trials, (), chosen, tuning.at_edge))
    title = f"Tuning: {rate_name} on dev against learning rate"
    shown = []
    for system, studies in lines.items():
        chosen_ones = (
            f"{number(one.chosen[0])} with {percent(one.chosen[1])} %{' at the edge' if one.at_edge else ''}"
            for one in studies
        )
        shown.append(f"{system}: {', '.join(chosen_ones)}")
    alt = f"{title}. Chosen: {'; '.join(shown)}."
    return _plot("tuning", title, lines, f"{rate_name} on dev (%)", TRIALS, alt)


def _plot(
    name: str, title: str, lines: Mapping[str, Sequence[Line]], y_label: str, caption: str, alt: str
) -> drawing.Plot | None:
    if not lines:
        return None
    every = [line for own in lines.values() for line in own]
    wers = [100 * wer for line in every for _, wer in (*line.points, *line.seeds)]
    rates = [rate for line in every for rate, _ in line.points]

    def fill(figure: Figure) -> None:
        axes = drawing.single_axes(figure, title)
        axes.set_xscale("log")
        handles = [[_add(axes, line) for line in own][-1] for own in lines.values()]
        if drawing.is_wide(wers):
            axes.set_yscale("log")
            drawing.log_axis(axes.yaxis, min(wers), max(wers))
        drawing.log_axis(axes.xaxis, min(rates), max(rates))
        axes.set_xlabel("learning rate")
        axes.set_ylabel(y_label)
        drawing.add_legend(figure, handles, list(lines))

    return drawing.Plot(name, caption, alt, *drawing.draw(name, drawing.height_with_legend(list(lines)), fill))


def _add(axes: Axes, line: Line) -> Line2D:
    style, (rate, best) = line.style, line.chosen
    # trials, of which each is a single run, are many
    look = {"markersize": 6} if line.seeds else {"markersize": 4, "linewidth": 0.6, "alpha": 0.7}
    for at, wer in line.seeds:
        axes.plot([at], [100 * wer], style.marker, color=style.color.light, markersize=3.5, alpha=0.55)
    xs, ys = [rate for rate, _ in line.points], [100 * wer for _, wer in line.points]
    (drawn,) = axes.plot(xs, ys, **drawing.line_options(style, marker=style.marker, **look))
    ring: dict[str, Any] = {"markeredgecolor": style.color.light, "markeredgewidth": 2}
    axes.plot([rate], [100 * best], style.marker, markersize=10, markerfacecolor=PAPER.light, **ring)
    if line.at_edge:
        axes.annotate("edge", (rate, 100 * best), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8)
    return drawn
