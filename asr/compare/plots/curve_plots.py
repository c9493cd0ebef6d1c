"""Plots of training curves: WER on dev and training loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asr.compare.inputs.runs import Run
from asr.compare.plots import drawing
from asr.compare.plots.line_styles import LineStyle
from asr.compare.result import Axis
from asr.compare.statistics.curves import DEV_WER, SMOOTHED_SHARE, SeedCurves, seed_curves
from asr.evaluation.formatting import number, shortlist, time_unit

NUM_MARKERS = 6  # along a line
BAND = (
    "Line: mean over the seeds. Band: from the lowest to the highest seed. Only the range that all seeds have is shown."
)
MANY = 6  # more systems than this have fainter bands, which would hide each other


@dataclass(frozen=True)
class CurvePlot:
    """A plot of one metric over training.

    Attributes:
        name: of the plot's files.
        metric: in the curves of a run.
        title: of the plot.
        label: of the vertical axis.
        scale: factor from the logged value to the plotted one.
        axis: what the horizontal axis counts.
        smoothed: whether each curve is smoothed first.
    """

    name: str
    metric: str
    title: str
    label: str
    scale: float
    axis: Axis
    smoothed: bool


AXES: tuple[tuple[Axis, str], ...] = (("updates", "updates"), ("seconds", "time"))


def curve_plots(rate_name: str) -> tuple[CurvePlot, ...]:
    """Return what is drawn of runs whose error rates are called ``rate_name``."""
    return tuple(
        CurvePlot(f"{name}_{axis}", metric, f"{title} against {against}", label, scale, axis, smoothed)
        for name, metric, title, label, scale, smoothed in (
            ("dev_wer", DEV_WER, f"{rate_name} on dev", f"{rate_name} (%)", 100, False),
            ("loss", "train/loss", "Training loss", "nats per token", 1, True),
        )
        for axis, against in AXES
    )


def plot_curves(
    spec: CurvePlot, runs: Mapping[str, Sequence[Run]], styles: Mapping[str, LineStyle]
) -> drawing.Plot | str:
    """Draw a line per system; return a sentence if no run has logged the metric.

    Args:
        spec: what to draw.
        runs: by system.
        styles: by system, in the order of the legend.
    """
    logged = {name: [run.curves[spec.metric] for run in runs[name] if spec.metric in run.curves] for name in styles}
    curves = {name: seed_curves(found, spec.axis, smoothed=spec.smoothed) for name, found in logged.items()}
    drawn = {name: curve for name, curve in curves.items() if curve is not None}
    if not drawn:
        return f"{spec.title}: not drawn, because no run has logged it."
    names = list(drawn)

    def fill(figure: Figure) -> None:
        axes = drawing.single_axes(figure, spec.title)
        per_unit, label = 1.0, "updates"
        if spec.axis == "seconds":
            # in the unit that is written below them: ticks at 5 and 10 minutes, not at 0.833333
            per_unit, unit = time_unit(max(curve.grid[-1] for curve in drawn.values()))
            label = f"training time ({unit})"
        handles = [_add(axes, spec, drawn[name], styles[name], len(drawn), per_unit) for name in names]
        _label(axes, spec, list(drawn.values()), label)
        drawing.add_legend(figure, handles, names)

    png, svg = drawing.draw(spec.name, drawing.height_with_legend(names), fill)
    missing = [name for name in styles if name not in drawn]
    last = ", ".join(f"{name} {number(spec.scale * curve.mean[-1])}" for name, curve in drawn.items())
    alt = f"{spec.title}, {spec.label}. Last values: {last}."
    return drawing.Plot(spec.name, _caption(spec, list(drawn.values()), missing), alt, png, svg)


def _add(axes: Axes, spec: CurvePlot, curve: SeedCurves, style: LineStyle, num_systems: int, per_unit: float) -> Line2D:
    every, x = max(1, len(curve.grid) // NUM_MARKERS), curve.grid / per_unit
    (line,) = axes.plot(
        x,
        spec.scale * curve.mean,
        **drawing.line_options(style, marker=style.marker, markersize=4.5, markevery=(every // 2, every)),
    )
    if curve.num_seeds > 1:
        opacity = 0.18 if num_systems <= MANY else 0.08
        low, high = spec.scale * curve.low, spec.scale * curve.high
        axes.fill_between(x, low, high, color=style.color.light, alpha=opacity, linewidth=0)
    return line


def _label(axes: Axes, spec: CurvePlot, curves: Sequence[SeedCurves], x_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(spec.label)
    low, high = min(curve.low.min() for curve in curves), max(curve.high.max() for curve in curves)
    if low > 0 and high > 2 * low:
        axes.set_yscale("log")
        drawing.log_axis(axes.yaxis, low, high)


def _caption(spec: CurvePlot, curves: Sequence[SeedCurves], missing: Sequence[str]) -> str:
    several = max(curve.num_seeds for curve in curves) > 1
    parts = [BAND if several else "One seed each."]
    if spec.smoothed:
        parts.append(f"Each loss is first averaged with its neighbors over 1/{SMOOTHED_SHARE} of the run.")
    if missing:
        parts.append(f"Not shown, because it was not logged: {shortlist(missing)}.")
    return " ".join(parts)
