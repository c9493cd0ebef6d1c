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
from asr.compare.report.headline import used_runs
from asr.compare.result import SetComparison
from asr.evaluation.formatting import UNKNOWN, interval, percent, points, shortened

ROW_IN = 0.42  # height of a system in inches
NAME_LENGTH = 32  # leaves room for the numbers
DOTTED = (1.5, 1.2)  # an interval that tells less than others
REFERENCE = LineStyle(INK, (4.0, 3.0), width_pt=0.9).line_options
SEED_MARK: dict[str, Any] = {"marker": "|", "linestyle": "", "markersize": 11}


@dataclass(frozen=True)
class Bar:
    """A mean and its interval; all numbers are fractions.

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
    """

    title: str
    x_label: str
    bars: Sequence[Bar]
    reference: tuple[str, float] | None
    intervals: tuple[str, str]

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
            if seeds := [100 * seed for bar in self.bars for seed in bar.seeds]:
                legend.append((Line2D([], [], color=INK, **SEED_MARK), "one seed"))
                if is_wide(seeds):
                    axes.set_xscale("log")
                    axes.set_xlim(left=0.8 * min(seeds))  # an interval down to 0 ends at the edge
                    label_log_axis(axes.xaxis, *axes.get_xlim())
            if self.reference is not None:
                system, place_of_line = self.reference
                legend.append((axes.axvline(100 * place_of_line, zorder=0.9, **REFERENCE), system))
            return legend

        return draw(name, self.title, caption, fill, axes_in=1.0 + ROW_IN * len(self.bars))


def plot_wers(test_set: SetComparison, styles: Mapping[str, LineStyle], level: float) -> Plot:
    """Draw the systems on a test set, best first, with their names above their intervals."""
    bars = [
        Bar(
            row.system,
            row.wer_mean,
            row.low,
            row.high,
            ", ".join(filter(None, [_numbers(percent(row.wer_mean), interval(row.low, row.high)), used_runs(row)])),
            row.scope == "this run only",
            row.wers,
        )
        for row in test_set.rows
    ]
    caption = f"Best first: mean over the seeds, {100 * level:g} % interval, and a short vertical line for each seed."
    caption += _about_unknown(bars)
    if any(row.leaves_out_runs for row in test_set.rows):
        caption += " Runs that have not learned are left out."
    if any(bar.is_dotted for bar in bars):
        caption += " A dotted interval belongs to a single run and says nothing about other seeds."
    if len(bars) > 1:
        caption += " Two systems may differ although their intervals overlap, because they share seeds and speakers."
    title = f"{test_set.rate_name} on {shortened(test_set.name, NAME_LENGTH)}"
    baseline = next(((bar.system, bar.mean) for bar in bars if bar.system == test_set.baseline), None)
    intervals = f"{100 * level:g} % interval", f"{100 * level:g} %, this run only"
    plot = IntervalPlot(title, f"{test_set.rate_name} (%)", bars, baseline, intervals)
    return plot.draw(f"wer_{test_set.name}", caption, styles)


def plot_differences(test_set: SetComparison, styles: Mapping[str, LineStyle], level: float) -> Plot | None:
    """Draw the differences from the baseline, or from the best system without one; None if nothing was compared."""
    by_system = {row.system: row.to_baseline if test_set.baseline else row.to_best for row in test_set.rows}
    compared = {system: pair for system, pair in by_system.items() if pair is not None and pair.p_value is not None}
    if not compared:
        return None
    bars = [
        Bar(
            system,
            pair.mean,
            pair.low,
            pair.high,
            _numbers(points(pair.mean), interval(pair.low, pair.high, points)),
            pair.low < 0 < pair.high,
        )
        for system, pair in compared.items()
    ]
    other = next(iter(compared.values())).other
    caption = (
        f"Mean difference in points of {test_set.rate_name}, and its {100 * level:g} % interval, corrected for all "
        f"comparisons. Left of the line: better than {other}. Dotted: the interval contains 0, so that the difference "
        f"is not significant.{_about_unknown(bars)}"
    )
    title = f"Difference from {shortened(other, NAME_LENGTH)}"
    intervals = f"{100 * level:g} % interval", "not significant (interval contains 0)"
    plot = IntervalPlot(title, f"points of {test_set.rate_name}", bars, (other, 0.0), intervals)
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
        axes.plot([100 * end for end in ends], [height] * 2, **line)
    if len(unknown) == 1:
        arrow: dict[str, Any] = {"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0, **line}
        to_edge: dict[str, Any] = {"xy": (unknown[0], height), "xycoords": axes.get_yaxis_transform()}
        axes.annotate("", xytext=(100 * bar.mean, height), textcoords="data", arrowprops=arrow, **to_edge)
    axes.plot([100 * seed for seed in bar.seeds], [height] * len(bar.seeds), color=style.color, alpha=0.9, **SEED_MARK)
    rim: dict[str, Any] = {"markeredgecolor": PAPER, "markeredgewidth": 1}  # separates the marker from its line
    axes.plot([100 * bar.mean], [height], style.marker, color=style.color, markersize=9.5, **rim)
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.2}  # hides lines below the text
    for at, side, text in ((0.0, "left", shortened(bar.system, NAME_LENGTH)), (1.0, "right", bar.numbers)):
        place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "ha": side, "va": "center"}
        axes.text(at, height + 0.38, text, fontsize=9, bbox=box, **place)
