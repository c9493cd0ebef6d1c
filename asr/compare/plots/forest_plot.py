"""A plot of the WERs on a test set: interval, mean and each seed of every system."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asr.compare.plots.drawing import Plot, add_legend, dashed, draw, is_wide, log_axis, single_axes
from asr.compare.plots.line_styles import INK, PAPER, LineStyle
from asr.compare.result import Row, SetComparison
from asr.evaluation.formatting import interval, percent, shortened

ROW_IN = 0.42  # height of a system in inches
NAME_LENGTH = 34  # leaves room for the numbers
DOTTED = (1.5, 1.2)  # the interval of a single run
DASHED = (4.0, 3.0)  # the baseline


def plot_wers(found: SetComparison, styles: Mapping[str, LineStyle], level: float) -> Plot:
    """Draw the systems on a test set, best first, with their names above their intervals."""
    name = f"wer_{found.name}"

    def fill(figure: Figure) -> None:
        axes = single_axes(figure, f"{found.rate_name} on {shortened(found.name, NAME_LENGTH)}")
        for place, row in enumerate(found.rows):
            _add(axes, -place, row, styles[row.system])
        _finish(axes, found)
        _explain(figure, found, level)

    png, svg = draw(name, 1.35 + ROW_IN * len(found.rows), fill)
    rows = "; ".join(f"{row.system} {_numbers(row)}" for row in found.rows)
    alt = f"{found.rate_name} in percent on {found.name}, mean and interval, best first: {rows}."
    return Plot(name, _caption(found, level), alt, png, svg)


def _add(axes: Axes, height: int, row: Row, style: LineStyle) -> None:
    color = style.color.light
    ends = [100 * row.low, 100 * (row.high if math.isfinite(row.high) else max(row.wers))]
    axes.plot(ends, [height] * 2, color=color, linestyle=dashed(DOTTED if _is_single(row) else ()), linewidth=2.2)
    axes.plot([100 * wer for wer in row.wers], [height] * len(row.wers), "|", color=color, markersize=11, alpha=0.9)
    rim: dict[str, Any] = {"markeredgecolor": PAPER.light, "markeredgewidth": 1}  # separates the marker from its line
    axes.plot([100 * row.wer_mean], [height], style.marker, color=color, markersize=9.5, **rim)
    texts = ((0.0, "left", shortened(row.system, NAME_LENGTH)), (1.0, "right", _numbers(row)))
    box = {"facecolor": PAPER.light, "edgecolor": "none", "pad": 1.2}  # hides lines below the text
    for at, side, text in texts:
        place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "ha": side, "va": "center"}
        axes.text(at, height + 0.38, text, fontsize=9, bbox=box, **place)


def _is_single(row: Row) -> bool:
    return row.scope == "this run only"


def _numbers(row: Row) -> str:
    return f"{percent(row.wer_mean)} {interval(row.low, row.high)}"


def _finish(axes: Axes, found: SetComparison) -> None:
    axes.set_ylim(-len(found.rows) + 0.45, 0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{found.rate_name} (%)")
    wers = [100 * wer for row in found.rows for wer in row.wers]
    if is_wide(wers):
        axes.set_xscale("log")
        axes.set_xlim(left=0.8 * min(wers))  # an interval down to 0 ends at the edge
        log_axis(axes.xaxis, *axes.get_xlim())
    baseline = _baseline(found)
    if baseline is not None:
        axes.axvline(100 * baseline.wer_mean, color=INK.light, linestyle=dashed(DASHED), linewidth=0.9, zorder=0.9)


def _baseline(found: SetComparison) -> Row | None:
    return next((row for row in found.rows if row.system == found.baseline), None)


def _explain(figure: Figure, found: SetComparison, level: float) -> None:
    mean = Line2D([], [], color=INK.light, marker="o", linestyle="", markersize=7.5, markeredgewidth=0)
    seed = Line2D([], [], color=INK.light, marker="|", linestyle="", markersize=11)
    handles, names = [mean, seed], ["mean", "one seed"]
    for single in sorted({_is_single(row) for row in found.rows}):
        style = dashed(DOTTED if single else ())
        handles.append(Line2D([], [], color=INK.light, linestyle=style, linewidth=2.2))
        names.append(f"{100 * level:g} %, this run only" if single else f"{100 * level:g} % interval")
    if _baseline(found) is not None:
        handles.append(Line2D([], [], color=INK.light, linestyle=dashed(DASHED), linewidth=0.9))
        names.append("baseline")
    add_legend(figure, handles, names)


def _caption(found: SetComparison, level: float) -> str:
    parts = [f"Best first: mean over the seeds, {100 * level:g} % interval, and a short vertical line for each seed."]
    if any(map(_is_single, found.rows)):
        parts.append("A dotted interval belongs to a single run and says nothing about other seeds.")
    if _baseline(found) is not None:
        parts.append(f"Dashed: mean of the baseline {found.baseline}.")
    if len(found.rows) > 1:
        parts.append("Two systems may differ although their intervals overlap, because they share seeds and speakers.")
    return " ".join(parts)
