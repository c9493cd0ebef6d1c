"""What all plots of a comparison share: style, files, axes and legend."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from asr.compare.plots.line_styles import FAINT, INK, PAPER
from asr.evaluation.formatting import shortened

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


@dataclass(frozen=True)
class Plot:
    """A plot, twice, and its texts.

    Attributes:
        name: of its files, without suffix.
        caption: how to read it.
    """

    name: str
    title: str
    caption: str
    png: bytes
    svg: str


def draw(
    name: str,
    title: str,
    caption: str,
    fill: Callable[[Axes], Legend],
    axes_in: float = AXES_IN,
    with_png: bool = True,
) -> Plot:
    """Draw a plot with its legend below, where it hides nothing; the same content gives the same bytes.

    Args:
        name: of the files.
        title: of the plot.
        caption: of the plot.
        fill: draws on the axes, and returns what the legend explains.
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
    return Plot(name, title, caption, png.getvalue(), svg.getvalue())


def is_wide(values: Sequence[float]) -> bool:
    """Return whether values differ so much that only a logarithmic axis shows them all."""
    return min(values) > 0 and max(values) > WIDE * min(values)


def label_log_axis(axis: DrawnAxis, low: float, high: float) -> None:
    """Label a logarithmic axis from ``low`` to ``high`` with plain numbers, denser on a short axis."""
    steps = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0) if high / low > 4 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axis.set_minor_formatter(NullFormatter())
