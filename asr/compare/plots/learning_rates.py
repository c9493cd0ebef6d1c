"""Plots of the WER against the learning rate: of systems that differ only in it, and of a tuning sweep's trials."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from asr.compare.inputs.tuning import Tuning
from asr.compare.plots.drawing import Legend, Plot, draw, is_wide, label_log_axis
from asr.compare.plots.line_styles import PAPER, LineStyle
from asr.compare.result import Comparison, Row, SetComparison
from asr.evaluation.formatting import shortened

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


def families(comparison: Comparison, rows: Sequence[Row]) -> dict[str, list[tuple[float, Row]]]:
    """Return learning rates and rows of every family that has several rates, by rate.

    A family is named as its systems without their rates: ``eve`` for ``eve lr=0.01``. A system whose runs have no rate,
    or different ones, is left out.
    """
    families: dict[str, list[tuple[float, Row]]] = defaultdict(list)
    for row in rows:
        rate, *others = {run.lr for run in comparison.runs_of(row.system)}
        if rate is not None and rate > 0 and not others:
            family = " ".join(word for word in row.system.split() if not word.startswith("lr="))
            families[family].append((rate, row))
    several = {family: members for family, members in families.items() if len({rate for rate, _ in members}) > 1}
    return {family: sorted(members, key=lambda member: member[0]) for family, members in several.items()}


def plot_learning_rates(
    comparison: Comparison, test_set: SetComparison, styles: Mapping[str, LineStyle]
) -> Plot | None:
    """Draw a line per family with its best rate marked; None if no family has several rates."""
    lines = {}
    for family, members in families(comparison, test_set.rows).items():
        best_rate, best = min(members, key=lambda member: member[1].wer_mean)
        means = [(rate, row.wer_mean) for rate, row in members]
        seeds = [(rate, wer) for rate, row in members for wer in row.wers]
        lines[family] = [Line(styles[best.system], means, seeds, (best_rate, best.wer_mean))]
    title = f"{test_set.rate_name} on {shortened(test_set.name, 24)} against learning rate"
    return _plot(f"lr_{test_set.name}", title, lines, f"{test_set.rate_name} (%)", FAMILIES)


def plot_trials(tunings: Sequence[Tuning], styles: Mapping[str, LineStyle], rate_name: str) -> Plot | None:
    """Draw the trials of every system that is compared; None if there are none."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for tuning in tunings:
        trials = sorted(trial for trial in tuning.trials if math.isfinite(trial[1]))
        if tuning.system in styles and trials:
            chosen = tuning.chosen, min(wer for _, wer in trials)
            lines[tuning.system].append(Line(styles[tuning.system], trials, (), chosen, tuning.at_edge))
    title = f"Tuning: {rate_name} on dev against learning rate"
    return _plot("tuning", title, lines, f"{rate_name} on dev (%)", TRIALS)


def _plot(name: str, title: str, lines: Mapping[str, Sequence[Line]], y_label: str, caption: str) -> Plot | None:
    if not lines:
        return None
    every = [line for group in lines.values() for line in group]
    wers = [100 * wer for line in every for _, wer in (*line.points, *line.seeds)]
    rates = [rate for line in every for rate, _ in line.points]

    def fill(axes: Axes) -> Legend:
        axes.set(xscale="log", xlabel="learning rate", ylabel=y_label)
        legend = [([_add(axes, line) for line in group][-1], name) for name, group in lines.items()]
        if is_wide(wers):
            axes.set_yscale("log")
            label_log_axis(axes.yaxis, min(wers), max(wers))
        label_log_axis(axes.xaxis, min(rates), max(rates))
        return legend

    return draw(name, title, caption, fill)


def _add(axes: Axes, line: Line) -> Line2D:
    style, (rate, best) = line.style, line.chosen
    # trials, of which each is a single run, are many
    options = style.line_options | (
        {"markersize": 6} if line.seeds else {"markersize": 4, "linewidth": 0.6, "alpha": 0.7}
    )
    for at, wer in line.seeds:
        axes.plot([at], [100 * wer], style.marker, color=style.color, markersize=3.5, alpha=0.55)
    xs, ys = [rate for rate, _ in line.points], [100 * wer for _, wer in line.points]
    (drawn,) = axes.plot(xs, ys, marker=style.marker, **options)
    ring: dict[str, Any] = {"markeredgecolor": style.color, "markeredgewidth": 2}
    axes.plot([rate], [100 * best], style.marker, markersize=10, markerfacecolor=PAPER, **ring)
    if line.at_edge:
        axes.annotate("edge", (rate, 100 * best), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8)
    return drawn
