"""A plot of the differences from one system: what paired seeds and speakers tell, where intervals of means overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asr.compare.plots.drawing import Plot, add_legend, dashed, draw, single_axes
from asr.compare.plots.line_styles import INK, PAPER, LineStyle
from asr.compare.result import Difference, SetComparison
from asr.evaluation.formatting import points, points_interval, shortened

ROW_IN = 0.42  # height of a system in inches
NAME_LENGTH = 30  # leaves room for the numbers
UNSURE = (1.5, 1.2)  # dots of an interval that contains 0


def plot_differences(found: SetComparison, styles: Mapping[str, LineStyle], level: float) -> Plot | None:
    """Draw the differences from the baseline, or from the best system without one; None if nothing was compared."""
    by_system = {row.system: row.to_baseline if found.baseline else row.to_best for row in found.rows}
    rows = [(system, one) for system, one in by_system.items() if one is not None and one.p_value is not None]
    if not rows:
        return None
    name, other = f"differences_{found.name}", rows[0][1].other
    title = f"Difference from {shortened(other, NAME_LENGTH)}"

    def fill(figure: Figure) -> None:
        axes = single_axes(figure, title)
        for place, (system, one) in enumerate(rows):
            _add(axes, -place, system, one, styles[system])
        _finish(axes, rows, found.rate_name)
        _explain(figure, rows, level)

    png, svg = draw(name, 1.35 + ROW_IN * len(rows), fill)
    caption = (
        f"Mean difference in points of {found.rate_name}, and its {100 * level:g} % interval, corrected for all "
        f"comparisons. Left of the line: better than {other}. Dotted: the interval contains 0, and the two cannot be "
        "told apart."
    )
    shown = "; ".join(f"{system} {_numbers(one)}, {one.verdict}" for system, one in rows)
    return Plot(name, caption, f"{title} on {found.name} in points of {found.rate_name}: {shown}.", png, svg)


def _add(axes: Axes, height: int, system: str, one: Difference, style: LineStyle) -> None:
    color = style.color.light
    line = dashed(UNSURE if one.low < 0 < one.high else ())
    ends = [end if math.isfinite(end) else math.copysign(1.0, end) for end in (one.low, one.high)]
    axes.plot([100 * end for end in ends], [height] * 2, color=color, linestyle=line, linewidth=2.2)
    rim: dict[str, Any] = {"markeredgecolor": PAPER.light, "markeredgewidth": 1}
    axes.plot([100 * one.mean], [height], style.marker, color=color, markersize=9.5, **rim)
    box = {"facecolor": PAPER.light, "edgecolor": "none", "pad": 1.2}
    for at, side, text in ((0.0, "left", shortened(system, NAME_LENGTH)), (1.0, "right", _numbers(one))):
        place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "ha": side, "va": "center"}
        axes.text(at, height + 0.38, text, fontsize=9, bbox=box, **place)


def _numbers(one: Difference) -> str:
    return f"{points(one.mean)} {points_interval(one.low, one.high)}"


def _finish(axes: Axes, rows: Sequence[tuple[str, Difference]], rate_name: str) -> None:
    axes.set_ylim(-len(rows) + 0.45, 0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.axvline(0, color=INK.light, linewidth=0.9, zorder=0.9)
    axes.set_xlabel(f"points of {rate_name}")


def _explain(figure: Figure, rows: Sequence[tuple[str, Difference]], level: float) -> None:
    handles = [Line2D([], [], color=INK.light, marker="o", linestyle="", markersize=7.5, markeredgewidth=0)]
    names = ["mean difference"]
    kinds = {one.low < 0 < one.high for _, one in rows}
    for unsure, text in ((False, f"{100 * level:g} % interval"), (True, "the same, with 0")):
        if unsure in kinds:
            style = dashed(UNSURE if unsure else ())
            handles.append(Line2D([], [], color=INK.light, linestyle=style, linewidth=2.2))
            names.append(text)
    add_legend(figure, handles, names)
