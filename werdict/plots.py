"""The plots of a comparison: error rates with intervals, learning curves, learning rates."""

from __future__ import annotations

import csv
import io
import itertools
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from werdict.console import one_line
from werdict.formatting import UNKNOWN, interval, percent, shortened, shortlist, time_unit
from werdict.report.sections import contrast_cell
from werdict.result import Axis, Comparison, Row, Scale, SetComparison
from werdict.runs import Tuning
from werdict.statistics.times import DEV_WER, SMOOTHED_SHARE, SeedCurves, seed_curves

PAPER, INK, FAINT = "#ffffff", "#1f2328", "#d5dae0"
# The hues of Okabe and Ito 2002, "Color Universal Design" (jfly.uni-koeln.de/color), without their yellow, moved until
# each has a contrast of at least 3 to the paper and all are as far apart as possible for every kind of color vision.
HUES = ("#2a4ca0", "#d97603", "#00a85b", "#af2300", "#788ed5", "#bc6996")
# lengths of dashes and gaps in line widths; () is a solid line
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.6), (1.2, 1.4), (6, 1.5, 1.2, 1.5), (2.4, 1.2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class LineStyle:
    """How one system is drawn; marker in matplotlib's names, dashes as in ``DASHES``."""

    color: str
    dashes: tuple[float, ...] = ()
    marker: str = ""
    width_pt: float = 1.6

    @property
    def line_options(self) -> dict[str, Any]:
        """Matplotlib's options of a line without its marker."""
        return {
            "color": self.color,
            "linestyle": (0, self.dashes) if self.dashes else "-",
            "linewidth": self.width_pt,
        }


def line_styles(systems: Sequence[str], baseline: str | None) -> Mapping[str, LineStyle]:
    """Return a style for each system; the baseline has the color of the text.

    The numbers of hues, dashes and markers have no common divisor, so that 210 systems differ.
    """
    others = zip(itertools.cycle(HUES), itertools.cycle(DASHES), itertools.cycle(MARKERS), strict=False)
    baseline_style = LineStyle(INK, (), "o", width_pt=2.2)
    return {name: baseline_style if name == baseline else LineStyle(*next(others)) for name in systems}


WIDTH_IN = 4.5  # about the width of a phone, so that letters keep their size there
AXES_IN = 3.1  # usual height of a plot without its legend
LEGEND_ROW_IN = 0.19
PNG_DPI = 200
LEGEND_PT = 8.8
WIDE = 8  # values that differ by this factor need a logarithmic axis
NAME_LENGTH = 50  # characters of a system's name that fit into a legend
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "figure.facecolor": PAPER,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.5,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text
    "text.color": INK,
    "text.parse_math": False,  # a name may hold dollars
    "xtick.color": INK,
    "ytick.color": INK,
}
Legend = Sequence[tuple[Line2D, str]]
Numbers = tuple[Sequence[str], Iterable[Sequence[object]]]
"""The header and the rows of a table; the first column says whose the numbers are."""


@dataclass(frozen=True)
class Plot:
    """A plot, twice, and its texts.

    Attributes:
        name: of its files, without suffix.
        caption: how to read it.
        alt: what is drawn, for those who cannot see it.
        csv: the numbers.
    """

    name: str
    title: str
    caption: str
    png: bytes
    svg: str
    alt: str
    csv: str


def draw(
    name: str,
    title: str,
    caption: str,
    fill: Callable[[Axes], Legend],
    numbers: Numbers,
    axes_in: float = AXES_IN,
    with_png: bool = True,
) -> Plot:
    """Draw a plot with its legend below, where it hides nothing; the same content gives the same bytes.

    Args:
        name: of the files.
        title: of the plot.
        caption: of the plot.
        fill: draws on the axes, and returns what the legend explains.
        numbers: what is drawn.
        axes_in: height without the legend, in inches.
        with_png: whether the PNG is drawn too, else it is empty.
    """
    with matplotlib.style.context(["default", STYLE | {"svg.hashsalt": name}]), warnings.catch_warnings():
        # names may be in any script; in the SVG, which the report shows, the browser draws their letters
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title)
        legend = fill(axes)
        handles, names = [handle for handle, _ in legend], [name for _, name in legend]
        # width of DejaVu's letters and of the sample line
        entry_pt = 0.58 * LEGEND_PT * max(map(len, names), default=0) + 34
        columns = max(1, min(3, len(names), int(72 * WIDTH_IN // entry_pt)))
        figure.set_size_inches(WIDTH_IN, axes_in + LEGEND_ROW_IN * -(-len(names) // columns))
        # matplotlib leaves out labels that begin with an underscore
        labels = [f" {shortened(name, NAME_LENGTH)}" for name in names]
        options: dict[str, Any] = {"ncols": columns, "frameon": False, "handlelength": 3, "fontsize": LEGEND_PT}
        if legend:
            figure.legend(handles, labels, loc="outside lower left", **options)
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # keeps the layout of the SVG; a new one takes as long as drawing
        if with_png:
            figure.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
    header, rows = numbers[0], [[_csv_field(value) for value in row] for row in numbers[1]]
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([header, *rows])
    quantities = " against ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))
    alt = f"{title}: {shortlist(dict.fromkeys(row[0] for row in rows))}; {quantities}"
    return Plot(name, title, caption, png.getvalue(), svg.getvalue(), alt, table.getvalue())


def _csv_field(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))


def is_wide(values: Sequence[float]) -> bool:
    """Return whether values differ so much that only a logarithmic axis shows them all."""
    return min(values) > 0 and max(values) > WIDE * min(values)


def label_log_axis(axis: DrawnAxis, low: float, high: float) -> None:
    """Label a logarithmic axis from ``low`` to ``high`` with plain numbers, denser on a short axis."""
    steps = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0) if high / low > 4 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axis.set_minor_formatter(NullFormatter())


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
            is_loss = metric == LOSS
            name = f"{'loss' if is_loss else 'dev_wer'}_{axis}"
            label, scale = ("nats per token", 1) if is_loss else (f"{comparison.rate_name} (%)", 100)
            plots.append(curve_plot(name, title, label, axis, curves, styles, [SMOOTHED] * is_loss, scale))
        else:
            notes.append(f"{title}: not drawn, because no run has logged it.")
    return plots, notes


def curve_plot(
    name: str,
    title: str,
    label: str,
    axis: Axis,
    curves: Mapping[str, SeedCurves],
    styles: Mapping[str, LineStyle],
    notes: Sequence[str] = (),
    scale: float = 1,
) -> Plot:
    """Draw the mean curve of each system, with a band over its seeds.

    Args:
        name: of the files.
        title: of the plot.
        label: of the values.
        axis: what the grid of the curves counts.
        curves: by system.
        styles: of all systems.
        notes: sentences of the caption.
        scale: by which values are multiplied.
    """

    def fill(axes: Axes) -> Legend:
        # ticks of time are round in the unit that is named: 5 and 10 minutes, not 0.833333
        longest_s = max(curve.grid[-1] for curve in curves.values())
        per_unit, unit = time_unit(longest_s) if axis == "seconds" else (1.0, "")
        legend = []
        for system, curve in curves.items():
            style, x = styles[system], curve.grid / per_unit
            every = max(1, len(x) // NUM_MARKERS)
            marks: dict[str, Any] = {"marker": style.marker, "markersize": 4.5, "markevery": (every // 2, every)}
            (line,) = axes.plot(x, scale * curve.mean, **style.line_options, **marks)
            if curve.num_seeds > 1:
                low, high, opacity = scale * curve.low, scale * curve.high, 0.18 if len(curves) <= MANY else 0.08
                axes.fill_between(x, low, high, color=style.color, alpha=opacity, linewidth=0)
            legend.append((line, system))
        axes.set(xlabel=f"training time ({unit})" if unit else "updates", ylabel=label)
        lowest = min(curve.low.min() for curve in curves.values())
        highest = max(curve.high.max() for curve in curves.values())
        if lowest > 0 and highest > 2 * lowest:
            axes.set_yscale("log")
            label_log_axis(axes.yaxis, lowest, highest)
        return legend

    several = any(curve.num_seeds > 1 for curve in curves.values())
    caption = [BAND if several else "One seed each.", *notes]
    if missing := [system for system in styles if system not in curves]:
        caption.append(f"Not shown, because it was not logged: {shortlist(missing)}.")
    rows = [
        (system, at, *(scale * value for value in values), curve.num_seeds)
        for system, curve in curves.items()
        for at, *values in zip(curve.grid, curve.mean, curve.low, curve.high, strict=True)
    ]
    numbers = ("system", axis, label, "lowest seed", "highest seed", "seeds"), rows
    return draw(name, title, " ".join(caption), fill, numbers)


@dataclass(frozen=True)
class Trade:
    """What a system costs and what it gives, in the units of two axes; both are better if smaller.

    Attributes:
        is_least: whether the cost is known to be at least this, which an empty marker shows.
    """

    system: str
    cost: float
    quality: float
    is_least: bool = False


def plot_trades(
    trades: Sequence[Trade], styles: Mapping[str, LineStyle], labels: tuple[str, str], title: str, caption: str
) -> Plot:
    """Draw cost against quality, both on logarithmic axes: below and to the left is better."""

    def fill(axes: Axes) -> Legend:
        axes.set(xlabel=labels[0], ylabel=labels[1], xscale="log", yscale="log")
        legend = []
        for trade in trades:
            style = styles[trade.system]
            face = "none" if trade.is_least else style.color
            marks: dict[str, Any] = {"marker": style.marker, "markersize": 8, "linestyle": "", "color": style.color}
            (mark,) = axes.plot([trade.cost], [trade.quality], markerfacecolor=face, **marks)
            legend.append((mark, trade.system))
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            label_log_axis(axis, low, high)
        return legend

    rows = [(trade.system, trade.cost, trade.quality, "at least" * trade.is_least) for trade in trades]
    return draw("trades", title, caption, fill, (("system", *labels, "cost is"), rows))


ROW_IN = 0.42  # height of a system in inches
LABEL_LENGTH = 32  # leaves room for the numbers
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


def plot_intervals(
    name: str,
    title: str,
    caption: str,
    bars: Sequence[Bar],
    styles: Mapping[str, LineStyle],
    x_label: str,
    reference: tuple[str, float] | None,
    intervals: tuple[str, str],
    is_ratio: bool = False,
) -> Plot:
    """Draw means and their intervals below each other.

    Args:
        name: of the files.
        title: of the plot.
        caption: of the plot.
        bars: from top to bottom.
        styles: of all systems.
        x_label: quantity and unit of the axis.
        reference: the system and the place of a vertical line.
        intervals: what solid and dotted intervals are.
        is_ratio: whether the axis is logarithmic.
    """

    def fill(axes: Axes) -> Legend:
        axes.set_xlabel(x_label)
        for place, bar in enumerate(bars):
            _draw_bar(axes, -place, bar, styles[bar.system])
        axes.set_ylim(-len(bars) + 0.45, 0.75)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        legend = [(Line2D([], [], color=INK, marker="o", linestyle="", markersize=7.5), "mean")]
        for dotted in sorted({bar.is_dotted for bar in bars}):
            legend.append((Line2D([], [], **_interval_style(INK, dotted).line_options), intervals[dotted]))
        seeds = [seed for bar in bars for seed in bar.seeds]
        if seeds:
            legend.append((Line2D([], [], color=INK, **SEED_MARK), "one seed"))
        if is_ratio or (seeds and is_wide(seeds)):
            axes.set_xscale("log")
            # an interval down to 0 ends at the edge
            lowest = 0.8 * min(seeds or [bar.mean for bar in bars])
            axes.set_xlim(left=max(lowest if seeds else 0.4 * lowest, axes.get_xlim()[0]))
            label_log_axis(axes.xaxis, *axes.get_xlim())
        if reference is not None:
            system, place_of_line = reference
            legend.append((axes.axvline(place_of_line, zorder=0.9, **REFERENCE), system))
        return legend

    rows = [(bar.system, bar.mean, bar.low, bar.high, " ".join(map(_csv_field, bar.seeds))) for bar in bars]
    numbers = ("system", x_label, "low", "high", "seeds"), rows
    return draw(name, title, caption, fill, numbers, axes_in=1.0 + ROW_IN * len(bars))


def plot_wers(test_set: SetComparison, styles: Mapping[str, LineStyle], level: float) -> Plot:
    """Draw the systems on a test set, best first, with their names above their intervals."""
    bars = [
        Bar(
            row.system,
            100 * row.wer_mean,
            100 * row.low,
            100 * row.high,
            f"{percent(row.wer_mean)} {interval(row.low, row.high)}".removesuffix(f" {UNKNOWN}"),
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
    x_label = f"{test_set.rate_name} (%)"
    return plot_intervals(f"wer_{test_set.name}", title, caption, bars, styles, x_label, baseline, intervals)


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
    is_ratio, base, rate = scale == "ratio", shortened(test_set.baseline, LABEL_LENGTH), test_set.rate_name
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
    name, reference = f"differences_{test_set.name}", (base, 1.0 if is_ratio else 0.0)
    return plot_intervals(name, title, caption, bars, styles, x_label, reference, intervals, is_ratio)


def _about_unknown(bars: Sequence[Bar]) -> str:
    texts = {
        "An arrow leads to an end that is unknown.": any(math.isinf(bar.low) != math.isinf(bar.high) for bar in bars),
        "Without a line: the interval is unknown.": any(math.isinf(bar.low) and math.isinf(bar.high) for bar in bars),
    }
    return "".join(f" {text}" for text, is_needed in texts.items() if is_needed)


def _interval_style(color: str, is_dotted: bool) -> LineStyle:
    return LineStyle(color, DOTTED if is_dotted else (), width_pt=2.2)


def _draw_bar(axes: Axes, height: int, bar: Bar, style: LineStyle) -> None:
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
    for at, side, text in ((0.0, "left", shortened(bar.system, LABEL_LENGTH)), (1.0, "right", bar.numbers)):
        place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "ha": side, "va": "center"}
        axes.text(at, height + 0.38, text, fontsize=9, bbox=box, **place)


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
        rate, *others = {run.lr for run in comparison.runs_of(row.system)} or {None}
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
    return _rate_plot(f"lr_{test_set.name}", title, lines, f"{test_set.rate_name} (%)", FAMILIES)


def plot_trials(tunings: Sequence[Tuning], styles: Mapping[str, LineStyle], rate_name: str) -> Plot | None:
    """Draw the trials of every system that is compared; None if there are none."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for tuning in tunings:
        trials = sorted(trial for trial in tuning.trials if math.isfinite(trial[1]))
        if tuning.system in styles and trials:
            chosen = tuning.chosen, min(wer for _, wer in trials)
            lines[tuning.system].append(Line(styles[tuning.system], trials, (), chosen, tuning.at_edge))
    title = f"Tuning: {rate_name} on dev against learning rate"
    return _rate_plot("tuning", title, lines, f"{rate_name} on dev (%)", TRIALS)


def _rate_plot(name: str, title: str, lines: Mapping[str, Sequence[Line]], y_label: str, caption: str) -> Plot | None:
    if not lines:
        return None
    every = [line for group in lines.values() for line in group]
    wers = [100 * wer for line in every for _, wer in (*line.points, *line.seeds)]
    rates = [rate for line in every for rate, _ in line.points]

    def fill(axes: Axes) -> Legend:
        axes.set(xscale="log", xlabel="learning rate", ylabel=y_label)
        legend = [([_draw_line(axes, line) for line in group][-1], name) for name, group in lines.items()]
        if is_wide(wers):
            axes.set_yscale("log")
            label_log_axis(axes.yaxis, min(wers), max(wers))
        label_log_axis(axes.xaxis, min(rates), max(rates))
        return legend

    rows = [
        (name, rate, 100 * wer, kind)
        for name, group in lines.items()
        for line in group
        for kind, points in (("mean" if line.seeds else "trial", line.points), ("seed", line.seeds))
        for rate, wer in points
    ]
    return draw(name, title, caption, fill, (("system", "learning rate", y_label, "is"), rows))


def _draw_line(axes: Axes, line: Line) -> Line2D:
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


@dataclass(frozen=True)
class Plots:
    """The plots by their place in a report.

    Attributes:
        by_set: WERs and, where a pair has several seeds, differences; by test set.
        learning_rates: one per test set, if systems differ only in their rate; and the trials that chose settings.
        curves: of WER on dev and of training loss.
        notes: sentences on what could not be drawn.
        styles: of the systems, best first.
    """

    by_set: Mapping[str, Sequence[Plot]]
    learning_rates: Sequence[Plot]
    curves: Sequence[Plot]
    notes: Sequence[str]
    styles: Mapping[str, LineStyle]

    @property
    def all(self) -> tuple[Plot, ...]:
        """Every plot."""
        return (*(plot for plots in self.by_set.values() for plot in plots), *self.learning_rates, *self.curves)


def draw_plots(comparison: Comparison) -> Plots:
    """Draw everything that the runs have measured."""
    sets, level = comparison.sets, comparison.level
    styles = line_styles(comparison.systems, sets[0].baseline)
    by_set = {
        test_set.name: (plot_wers(test_set, styles, level), plot_differences(test_set, styles, level, comparison.scale))
        for test_set in sets
    }
    rates = [plot_learning_rates(comparison, test_set, styles) for test_set in sets]
    rates.append(plot_trials(comparison.tunings, styles, comparison.rate_name))
    curves, notes = curve_plots(comparison, styles)
    return Plots(
        {name: [plot for plot in plots if plot is not None] for name, plots in by_set.items()},
        [plot for plot in rates if plot is not None],
        curves,
        notes,
        styles,
    )
