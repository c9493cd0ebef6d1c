"""Plots of a test set with a line per system: the intervals of WERs, and of differences from one system.

Paired seeds and speakers show differences that intervals of means, which overlap, do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from asr.compare.plots.drawing import Legend, Plot, draw, is_wide, label_log_axis
from asr.compare.plots.line_styles import INK, PAPER, LineStyle
from asr.compare.report.tables import contrast_cell
from asr.compare.result import Scale, SetComparison
from asr.evaluation.formatting import UNKNOWN, interval, percent, shortened

ROW_IN = 0.42  # height of a system in inches
NAME_LENGTH = 32  # leaves room for the numbers
DOTTED = (1.5, 1.2)  # an interval that tells less than others
REFERENCE = LineStyle(INK, (4.0, 3.0), width_pt=0.9).line_options
SEED_MARK: dict[str, Any] = {"marker": "|", "linestyle": "", "markersize": 11}


@dataclass(frozen=True)
class Bar:
    """A mean and its interval; all numbers are in the unit of the axis.

    Attributes:
        low: lower end; infinite if it is unknown.
        high: upper end, alike.
        numbers: mean and interval as text.
        seeds: values that are marked too.
    """

    system: str
    mean: float
    low: float
    high: float
    numbers: str
    is_dotted: bool
    seeds: Sequence[float] = ()


@dataclass(frozen=True)
class IntervalPlot:
    """What is drawn below each other.

    Attributes:
        reference: the system and the place of a vertical line.
        intervals: what solid and dotted intervals are.
        is_ratio: whether the axis is logarithmic.
    """

    title: str
    x_label: str
    bars: Sequence[Bar]
    reference: tuple[str, float] | None
    intervals: tuple[str, str]
    is_ratio: bool = False

    def draw(self, name: str, caption: str, styles: Mapping[str, LineStyle]) -> Plot:
        """Return the plot."""

        def fill(axes: Axes) -> Legend:
            axes.set_xlabel(self.x_label)
            for place, bar in enumerate(self.bars):
                _add(axes, -place, bar, styles[bar.system])
            axes.set_ylim(-len(self.bars) + 0.45, 0.75)
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            legend = [(Line2D([], [], color=INK, marker="o", linestyle="", markersize=7.5), "mean")]
            for dotted in sorted({bar.is_dotted for bar in self.bars}):
                line = Line2D([], [], **_interval_style(INK, dotted).line_options)
                legend.append((line, self.intervals[dotted]))
            seeds = [seed for bar in self.bars for seed in bar.seeds]
            if seeds:
                legend.append((Line2D([], [], color=INK, **SEED_MARK), "one seed"))
            if self.is_ratio or (seeds and is_wide(seeds)):
                axes.set_xscale("log")
                # an interval down to 0 ends at the edge
                lowest = 0.8 * min(seeds or [bar.mean for bar in self.bars])
                axes.set_xlim(left=max(lowest, axes.get_xlim()[0]) if seeds else max(0.4 * lowest, axes.get_xlim()[0]))
                label_log_axis(axes.xaxis, *axes.get_xlim())
            if self.reference is not None:
                system, place_of_line = self.reference
                legend.append((axes.axvline(place_of_line, zorder=0.9, **REFERENCE), system))
            return legend

        return draw(name, self.title, caption, fill, axes_in=1.0 + ROW_IN * len(self.bars))


def plot_wers(test_set: SetComparison, styles: Mapping[str, LineStyle], level: float) -> Plot:
    """Draw the systems on a test set, best first, with their names above their intervals."""
    bars = [
        Bar(
            row.system,
            100 * row.wer_mean,
            100 * row.low,
            100 * row.high,
            _numbers(percent(row.wer_mean), interval(row.low, row.high)),
            row.scope == "this run only",
            [100 * wer for wer in row.wers],
        )
        for row in test_set.rows
    ]
    caption = f"Best first: mean over the seeds, {100 * level:g} % interval, and a short vertical line for each seed."
    caption += _about_unknown(bars)
    if any(row.reliability.num_learned < row.reliability.num_runs for row in test_set.rows):
        caption += " A run that failed counts as 100 %."
    if any(bar.is_dotted for bar in bars):
        caption += " A dotted interval belongs to a single run and says nothing about other seeds."
    if len(bars) > 1:
        caption += " Two systems may differ although their intervals overlap, because they share seeds and speakers."
    title = f"{test_set.rate_name} on {shortened(test_set.name, NAME_LENGTH)}"
    baseline = next(((bar.system, bar.mean) for bar in bars if bar.system == test_set.baseline), None)
    intervals = f"{100 * level:g} % interval", f"{100 * level:g} %, this run only"
    plot = IntervalPlot(title, f"{test_set.rate_name} (%)", bars, baseline, intervals)
    return plot.draw(f"wer_{test_set.name}", caption, styles)


def plot_differences(
    test_set: SetComparison, styles: Mapping[str, LineStyle], level: float, scale: Scale
) -> Plot | None:
    """Draw a forest of the contrasts with the baseline; None if nothing was compared."""
    contrasts = {
        row.system: row.to_baseline
        for row in test_set.rows
        if row.to_baseline is not None and row.to_baseline.p_value is not None
    }
    if not contrasts:
        return None
    is_ratio, base, rate = scale == "ratio", shortened(test_set.baseline, NAME_LENGTH), test_set.rate_name
    bars = []
    for system, contrast in contrasts.items():
        cell = contrast_cell(contrast, scale)
        is_open, ends = contrast.verdict == "cannot distinguish", (contrast.low, contrast.high)
        numbers, factor = f"{cell.text} {cell.detail}".strip(), 1 if is_ratio else 100
        low, high = (factor * end for end in ends)
        bars.append(Bar(system, factor * contrast.value, low, high, numbers, is_open))
    what = f"Ratio of the geometric mean {rate}s" if is_ratio else f"Difference in points of {rate}"
    caption = (
        f"{what}, and its {100 * level:g} % interval, corrected for the number of systems. Left of the line: better "
        f"than {base}. Dotted: not significant.{_about_unknown(bars)}"
    )
    title = f"Errors compared with {base}" if is_ratio else f"Difference from {base}"
    x_label = f"{rate} ÷ {base}’s" if is_ratio else f"points of {rate}"
    intervals = f"{100 * level:g} % interval", "not significant"
    plot = IntervalPlot(title, x_label, bars, (base, 1.0 if is_ratio else 0.0), intervals, is_ratio)
    return plot.draw(f"differences_{test_set.name}", caption, styles)


def _numbers(mean: str, ends: str) -> str:
    return mean if ends == UNKNOWN else f"{mean} {ends}"


def _about_unknown(bars: Sequence[Bar]) -> str:
    texts = {
        "An arrow leads to an end that is unknown.": any(math.isinf(bar.low) != math.isinf(bar.high) for bar in bars),
        "Without a line: the interval is unknown.": any(math.isinf(bar.low) and math.isinf(bar.high) for bar in bars),
    }
    return "".join(f" {text}" for text, is_needed in texts.items() if is_needed)


def _interval_style(color: str, is_dotted: bool) -> LineStyle:
    return LineStyle(color, DOTTED if is_dotted else (), width_pt=2.2)


def _add(axes: Axes, height: int, bar: Bar, style: LineStyle) -> None:
    line = _interval_style(style.color, bar.is_dotted).line_options
    unknown = [edge for edge, end in enumerate((bar.low, bar.high)) if math.isinf(end)]
    if len(unknown) < 2:
        ends = [end if math.isfinite(end) else bar.mean for end in (bar.low, bar.high)]
        axes.plot(ends, [height] * 2, **line)
    if len(unknown) == 1:
        arrow: dict[str, Any] = {"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0, **line}
        to_edge: dict[str, Any] = {"xy": (unknown[0], height), "xycoords": axes.get_yaxis_transform()}
        axes.annotate("", xytext=(bar.mean, height), textcoords="data", arrowprops=arrow, **to_edge)
    axes.plot(bar.seeds, [height] * len(bar.seeds), color=style.color, alpha=0.9, **SEED_MARK)
    rim: dict[str, Any] = {"markeredgecolor": PAPER, "markeredgewidth": 1}  # separates the marker from its line
    axes.plot([bar.mean], [height], style.marker, color=style.color, markersize=9.5, **rim)
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.2}  # hides lines below the text
    for at, side, text in ((0.0, "left", shortened(bar.system, NAME_LENGTH)), (1.0, "right", bar.numbers)):
        place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "ha": side, "va": "center"}
        axes.text(at, height + 0.38, text, fontsize=9, bbox=box, **place)
