"""A plot of the trials that chose settings: WER on the development sets against the learning rate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asr.compare.inputs.tuning import Tuning
from asr.compare.plots import drawing
from asr.compare.plots.line_styles import PAPER, LineStyle
from asr.evaluation.formatting import number, percent

NAME = "tuning"
CAPTION = (
    "Small markers: trials, which differ in other settings too. Large open marker: the chosen one; “edge” where its "
    "rate was the smallest or the largest that was tried, so that a better one may lie beyond."
)


def plot_trials(tunings: Sequence[Tuning], styles: Mapping[str, LineStyle], rate_name: str) -> drawing.Plot | None:
    """Draw the trials of every system that is compared; None if there are none."""
    by_system: dict[str, list[Tuning]] = defaultdict(list)
    for tuning in tunings:
        if tuning.system in styles and any(math.isfinite(wer) for _, wer in tuning.trials):
            by_system[tuning.system].append(tuning)
    if not by_system:
        return None
    title = f"Tuning: {rate_name} on dev against learning rate"

    def fill(figure: Figure) -> None:
        axes = drawing.single_axes(figure, title)
        axes.set_xscale("log")
        handles = [_add(axes, own, styles[system]) for system, own in by_system.items()]
        _label(axes, [one for own in by_system.values() for one in own], rate_name)
        drawing.add_legend(figure, handles, list(by_system))

    png, svg = drawing.draw(NAME, drawing.height_with_legend(list(by_system)), fill)
    return drawing.Plot(NAME, CAPTION, _alt(title, by_system), png, svg)


def _add(axes: Axes, studies: Sequence[Tuning], style: LineStyle) -> Line2D:
    for tuning in studies:
        trials = sorted(trial for trial in tuning.trials if math.isfinite(trial[1]))
        rates, wers = [rate for rate, _ in trials], [100 * wer for _, wer in trials]
        (line,) = axes.plot(
            rates, wers, **drawing.line_options(style, marker=style.marker, markersize=4, linewidth=0.6, alpha=0.7)
        )
        best = min(wers)
        ring: dict[str, Any] = {"markeredgecolor": style.color.light, "markeredgewidth": 2}
        axes.plot([tuning.chosen], [best], style.marker, markersize=10, markerfacecolor=PAPER.light, **ring)
        if tuning.at_edge:
            axes.annotate(
                "edge", (tuning.chosen, best), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8
            )
    return line


def _label(axes: Axes, tunings: Sequence[Tuning], rate_name: str) -> None:
    wers = [100 * wer for one in tunings for _, wer in one.trials if math.isfinite(wer)]
    rates = [rate for one in tunings for rate, _ in one.trials]
    if drawing.is_wide(wers):
        axes.set_yscale("log")
        drawing.log_axis(axes.yaxis, min(wers), max(wers))
    drawing.log_axis(axes.xaxis, min(rates), max(rates))
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"{rate_name} on dev (%)")


def _alt(title: str, by_system: Mapping[str, Sequence[Tuning]]) -> str:
    parts = []
    for system, studies in by_system.items():
        chosen = ", ".join(
            f"{number(one.chosen)} with {percent(min(wer for _, wer in one.trials))} %"
            f"{' at the edge' if one.at_edge else ''}"
            for one in studies
        )
        parts.append(f"{system}: {chosen}")
    return f"{title}. Chosen: {'; '.join(parts)}."
