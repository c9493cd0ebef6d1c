"""Pictures of the course of trainings: WER on dev and training loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asr.evaluation.comparison.drawing import Plot, add_legend, draw, legend_rows, line_of, log_axis, single_axes
from asr.evaluation.comparison.looks import Look
from asr.evaluation.comparison.matching import named
from asr.evaluation.comparison.runs import Run
from asr.evaluation.comparison.seed_curves import SMOOTHED_SHARE, Axis, SeedCurves, seed_curves
from asr.evaluation.comparison.wording import number, time_unit

NUM_MARKERS = 6  # along a line
LOSS = "nats per token"
MANY = 6  # contestants whose bands would hide each other


@dataclass(frozen=True)
class Course:
    """One number over the course of trainings.

    Attributes:
        name: of the picture's files.
        metric: in the curves of a run.
        title: of the picture.
        label: of the upright axis.
        scale: from the logged number to that of the label.
        axis: what the other axis counts.
        smoothed: whether each curve is averaged first.
    """

    name: str
    metric: str
    title: str
    label: str
    scale: float
    axis: Axis
    smoothed: bool


AXES: tuple[tuple[Axis, str], ...] = (("updates", "updates"), ("seconds", "time"))
COURSES = (
    *(
        Course(f"dev_wer_{axis}", "val/wer", f"WER on dev against {it}", "WER (%)", 100, axis, False)
        for axis, it in AXES
    ),
    *(Course(f"loss_{axis}", "train/loss", f"Training loss against {it}", LOSS, 1, axis, True) for axis, it in AXES),
)


def plot_course(course: Course, runs: Mapping[str, Sequence[Run]], looks: Mapping[str, Look]) -> Plot | str:
    """Draw a line per contestant; return a sentence where there is nothing to draw.

    Args:
        course: what is drawn.
        runs: by contestant.
        looks: by contestant; their order is that of the legend.
    """
    curves = {name: _seeds(course, runs[name]) for name in looks}
    drawn = {name: curve for name, curve in curves.items() if curve is not None}
    if not drawn:
        return f"{course.title}: not drawn, as no run has logged it."
    names = list(drawn)

    def fill(figure: Figure) -> None:
        axes = single_axes(figure, course.title)
        handles = [_add(axes, course, drawn[name], looks[name], len(drawn)) for name in names]
        _label(axes, course, list(drawn.values()))
        add_legend(figure, handles, names)

    png, svg = draw(course.name, 3.1 + 0.19 * legend_rows(names), fill)
    missing = [name for name in looks if name not in drawn]
    return Plot(course.name, _caption(course, list(drawn.values()), missing), _alt(course, drawn), png, svg)


def _seeds(course: Course, runs: Sequence[Run]) -> SeedCurves | None:
    curves = [run.curves[course.metric] for run in runs if course.metric in run.curves]
    return seed_curves(curves, course.axis, smoothed=course.smoothed)


def _add(axes: Axes, course: Course, curve: SeedCurves, look: Look, num_contestants: int) -> Line2D:
    every = max(1, len(curve.grid) // NUM_MARKERS)
    (line,) = axes.plot(
        curve.grid,
        course.scale * curve.mean,
        **line_of(look, marker=look.marker, markersize=4.5, markevery=(every // 2, every)),
    )
    if curve.num_seeds > 1:
        opacity = 0.18 if num_contestants <= MANY else 0.08
        low, high = course.scale * curve.low, course.scale * curve.high
        axes.fill_between(curve.grid, low, high, color=look.colour.light, alpha=opacity, linewidth=0)
    return line


def _label(axes: Axes, course: Course, curves: Sequence[SeedCurves]) -> None:
    axes.set_ylabel(course.label)
    low, high = min(curve.low.min() for curve in curves), max(curve.high.max() for curve in curves)
    if low > 0 and high > 2 * low:
        axes.set_yscale("log")
        log_axis(axes.yaxis, low, high)
    if course.axis == "updates":
        axes.set_xlabel("updates")
        return
    seconds, unit = time_unit(max(curve.grid[-1] for curve in curves))
    axes.set_xlabel(f"time of training ({unit})")
    axes.xaxis.set_major_formatter(lambda at, _: f"{at / seconds:g}")


def _caption(course: Course, curves: Sequence[SeedCurves], missing: Sequence[str]) -> str:
    several = max(curve.num_seeds for curve in curves) > 1
    parts = ["Line: mean over the seeds; band: from the lowest to the highest seed, as far as all seeds were measured."]
    parts = parts if several else ["One seed each."]
    if course.smoothed:
        parts.append(f"Each loss is first averaged with its neighbours, 1/{SMOOTHED_SHARE} of the training together.")
    if missing:
        parts.append(f"Not shown, as it was not logged: {named(missing)}.")
    return " ".join(parts)


def _alt(course: Course, curves: Mapping[str, SeedCurves]) -> str:
    last = [f"{name} {number(course.scale * curve.mean[-1])}" for name, curve in curves.items()]
    return f"{course.title}, {course.label}. Last values: {', '.join(last)}."
