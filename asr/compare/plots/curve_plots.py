"""Plots of training curves: WER on dev and training loss, against updates and against time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from asr.compare.plots.drawing import Legend, Plot, draw, label_log_axis
from asr.compare.plots.line_styles import LineStyle
from asr.compare.result import Axis, Comparison
from asr.compare.statistics.curves import DEV_WER, SMOOTHED_SHARE, SeedCurves, seed_curves
from asr.evaluation.formatting import shortlist, time_unit

NUM_MARKERS = 6  # along a line
BAND = (
    "Line: mean over the seeds. Band: from the lowest to the highest seed. Only the range that all seeds have is shown."
)
SMOOTHED = f"Each loss is first averaged with its neighbors over 1/{SMOOTHED_SHARE} of the run."
MANY = 6  # more systems than this have fainter bands, which would hide each other
LOSS = "train/loss"


def curve_plots(comparison: Comparison, styles: Mapping[str, LineStyle]) -> tuple[list[Plot], list[str]]:
    """Return the plots, with a line per system, and a sentence on each that no run has logged."""
    plots, notes = [], []
    axes: tuple[tuple[Axis, str], ...] = (("updates", "updates"), ("seconds", "time"))
    titles = {DEV_WER: f"{comparison.rate_name} on dev", LOSS: "Training loss"}
    for metric, (axis, against) in itertools.product(titles, axes):
        logged = {
            name: [run.curves[metric] for run in comparison.runs_of(name) if metric in run.curves] for name in styles
        }
        smoothed_curves = {name: seed_curves(curves, axis, smoothed=metric == LOSS) for name, curves in logged.items()}
        curves = {name: curve for name, curve in smoothed_curves.items() if curve is not None}
        title = f"{titles[metric]} against {against}"
        if curves:
            label = "nats per token" if metric == LOSS else f"{comparison.rate_name} (%)"
            plots.append(_plot(title, label, metric, axis, curves, styles))
        else:
            notes.append(f"{title}: not drawn, because no run has logged it.")
    return plots, notes


def _plot(
    title: str, label: str, metric: str, axis: Axis, curves: Mapping[str, SeedCurves], styles: Mapping[str, LineStyle]
) -> Plot:
    scale = 1 if metric == LOSS else 100

    def fill(axes: Axes) -> Legend:
        # ticks of time are round in the unit that is named: 5 and 10 minutes, not 0.833333
        longest_s = max(curve.grid[-1] for curve in curves.values())
        per_unit, unit = time_unit(longest_s) if axis == "seconds" else (1.0, "")
        legend = []
        for name, curve in curves.items():
            style, x = styles[name], curve.grid / per_unit
            every = max(1, len(x) // NUM_MARKERS)
            marks: dict[str, Any] = {"marker": style.marker, "markersize": 4.5, "markevery": (every // 2, every)}
            (line,) = axes.plot(x, scale * curve.mean, **style.line_options, **marks)
            if curve.num_seeds > 1:
                low, high, opacity = scale * curve.low, scale * curve.high, 0.18 if len(curves) <= MANY else 0.08
                axes.fill_between(x, low, high, color=style.color, alpha=opacity, linewidth=0)
            legend.append((line, name))
        axes.set(xlabel=f"training time ({unit})" if unit else "updates", ylabel=label)
        lowest = min(curve.low.min() for curve in curves.values())
        highest = max(curve.high.max() for curve in curves.values())
        if lowest > 0 and highest > 2 * lowest:
            axes.set_yscale("log")
            label_log_axis(axes.yaxis, lowest, highest)
        return legend

    several = any(curve.num_seeds > 1 for curve in curves.values())
    caption = [BAND if several else "One seed each.", *([SMOOTHED] if metric == LOSS else [])]
    if missing := [name for name in styles if name not in curves]:
        caption.append(f"Not shown, because it was not logged: {shortlist(missing)}.")
    name = f"{'loss' if metric == LOSS else 'dev_wer'}_{axis}"
    return draw(name, title, " ".join(caption), fill)
