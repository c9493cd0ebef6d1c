"""Plots of a test set with a line per system: the intervals of WERs, and of differences from one system.

Paired seeds and speakers show differences that intervals of means, which overlap, do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asr.compare.plots.drawing import Plot, add_legend, dashed, draw, is_wide, log_axis, single_axes
from asr.compare.plots.line_styles import INK, PAPER, LineStyle
from asr.compare.result import SetComparison
from asr.evaluation.formatting import interval, percent, points, points_interval, shortened

ROW_IN = 0.42  # height of a system in inches
NAME_LENGTH = 32  # leaves room for the numbers
DOTTED = (1.5, 1.2)  # an interval that tells less than others
DASHED = (4.0, 3.0)  # the baseline
MEAN = Line2D([], [], color=INK.light, marker="o", linestyle="", markersize=7.5, markeredgewidth=0)
SEED = Line2D([], [], color=INK.light, marker="|", linestyle="", markersize=11)
BASELINE = Line2D([], [], color=INK.light, linestyle=dashed(DASHED), linewidth=0.9)
Legend = list[tuple[Line2D, str]]


@dataclass(frozen=True)
class Bar:
    """A mean and its interval; all numbers are fractions.

    Attributes:
        seeds: values that are marked too.
        numbers: mean and interval as text.
    """

    system: str
    mean: float
    low: float
    high: float
    seeds: Sequence[float]
    numbers: str
    is_dotted: bool


def plot_wers(found: SetComparison, styles: Mapping[str, LineStyle], level: float) -> Plot:
    """Draw the systems on a test set, best first, with their names above their intervals."""
    rows = [
        Bar(
            row.system,
            row.wer_mean,
            row.low,
            row.high if math.isfinite(row.high) else max(row.wers),
            row.wers,
            f"{percent(row.wer_mean)} {interval(row.low, row.high)}",
            row.scope == "this run only",
        )
        for row in found.rows
    ]
    baseline = next((row.mean for row in rows if row.system == found.baseline), None)

    def finish(axes: Axes) -> None:
        axes.set_xlabel(f"{found.rate_name} (%)")
        wers = [100 * wer for row in rows for wer in row.seeds]
        if is_wide(wers):
            axes.set_xscale("log")
            axes.set_xlim(left=0.8 * min(wers))  # an interval down to 0 ends at the edge
            log_axis(axes.xaxis, *axes.get_xlim())
        if baseline is not None:
            axes.axvline(100 * baseline, color=INK.light, linestyle=dashed(DASHED), linewidth=0.9, zorder=0.9)

    legend = [(MEAN, "mean"), (SEED, "one seed"), *_intervals(rows, level, f"{100 * level:g} %, this run only")]
    caption = [f"Best first: mean over the seeds, {100 * level:g} % interval, and a short vertical line for each seed."]
    if any(row.is_dotted for row in rows):
        caption.append("A dotted interval belongs to a single run and says nothing about other seeds.")
    if baseline is not None:
        legend.append((BASELINE, "baseline"))
        caption.append(f"Dashed: mean of the baseline {found.baseline}.")
    if len(rows) > 1:
        caption.append(
            "Two systems may differ although their intervals overlap, because they share seeds and speakers."
        )
    title = f"{found.rate_name} on {shortened(found.name, NAME_LENGTH)}"
    shown = "; ".join(f"{row.system} {row.numbers}" for row in rows)
    alt = f"{found.rate_name} in percent on {found.name}, mean and interval, best first: {shown}."
    name = f"wer_{found.name}"
    return Plot(name, " ".join(caption), alt, *_draw(name, title, rows, styles, finish, legend))


def plot_differences(found: SetComparison, styles: Mapping[str, LineStyle], level: float) -> Plot | None:
    """Draw the differences from the baseline, or from the best system without one; None if nothing was compared."""
    by_system = {row.system: row.to_baseline if found.baseline else row.to_best for row in found.rows}
    compared = {system: one for system, one in by_system.items() if one is not None and one.p_value is not None}
    if not compared:
        return None
    rows = [
        Bar(
            system,
            one.mean,
            max(one.low, -1.0),
            min(one.high, 1.0),
            (),
            f"{points(one.mean)} {points_interval(one.low, one.high)}",
            one.low < 0 < one.high,
        )
        for system, one in compared.items()
    ]

    def finish(axes: Axes) -> None:
        axes.axvline(0, color=INK.light, linewidth=0.9, zorder=0.9)
        axes.set_xlabel(f"points of {found.rate_name}")

    other = next(iter(compared.values())).other
    legend = [(MEAN, "mean difference"), *_intervals(rows, level, "not significant")]
    caption = (
        f"Mean difference in points of {found.rate_name}, and its {100 * level:g} % interval, corrected for all "
        f"comparisons. Left of the line: better than {other}. Dotted: the interval contains 0, so that the difference "
        "is not significant."
    )
    name, title = f"differences_{found.name}", f"Difference from {shortened(other, NAME_LENGTH)}"
    shown = "; ".join(f"{row.system} {row.numbers}, {compared[row.system].verdict}" for row in rows)
    alt = f"{title} on {found.name} in points of {found.rate_name}: {shown}."
    return Plot(name, caption, alt, *_draw(name, title, rows, styles, finish, legend))


def _intervals(rows: Sequence[Bar], level: float, dotted: str) -> Legend:
    """Return what the legend says of intervals, ``dotted`` of those that are dotted."""
    kinds = {False: ((), f"{100 * level:g} % interval"), True: (DOTTED, dotted)}
    shown = (kinds[is_dotted] for is_dotted in sorted({row.is_dotted for row in rows}))
    return [(Line2D([], [], color=INK.light, linestyle=dashed(dots), linewidth=2.2), text) for dots, text in shown]


def _draw(
    name: str,
    title: str,
    rows: Sequence[Bar],
    styles: Mapping[str, LineStyle],
    finish: Callable[[Axes], None],
    legend: Legend,
) -> tuple[bytes, str]:
    def fill(figure: Figure) -> None:
        axes = single_axes(figure, title)
        for place, row in enumerate(rows):
            _add(axes, -place, row, styles[row.system])
        axes.set_ylim(-len(rows) + 0.45, 0.75)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        finish(axes)
        handles, names = zip(*legend, strict=True)
        add_legend(figure, handles, names)

    return draw(name, 1.35 + ROW_IN * len(rows), fill)


def _add(axes: Axes, height: int, row: Bar, style: LineStyle) -> None:
    color, line = style.color.light, dashed(DOTTED if row.is_dotted else ())
    axes.plot([100 * row.low, 100 * row.high], [height] * 2, color=color, linestyle=line, linewidth=2.2)
    axes.plot([100 * seed for seed in row.seeds], [height] * len(row.seeds), "|", color=color, markersize=11, alpha=0.9)
    rim: dict[str, Any] = {"markeredgecolor": PAPER.light, "markeredgewidth": 1}  # separates the marker from its line
    axes.plot([100 * row.mean], [height], style.marker, color=color, markersize=9.5, **rim)
    box = {"facecolor": PAPER.light, "edgecolor": "none", "pad": 1.2}  # hides lines below the text
    for at, side, text in ((0.0, "left", shortened(row.system, NAME_LENGTH)), (1.0, "right", row.numbers)):
        place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "ha": side, "va": "center"}
        axes.text(at, height + 0.38, text, fontsize=9, bbox=box, **place)
