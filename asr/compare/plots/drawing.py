"""What all plots of a comparison share: style, files and axes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from asr.compare.plots.line_styles import FAINT, INK, PAPER, LineStyle
from asr.evaluation.formatting import shortened

WIDTH_IN = 4.5  # about the width of a phone, so that letters keep their size there
PNG_DPI = 200
LEGEND_PT = 8.8
WIDE = 8  # values that differ by this factor need a logarithmic axis
NAME_LENGTH = 50  # characters of a system's name that fit into a legend
STYLE = {
    "axes.edgecolor": INK.light,
    "axes.facecolor": PAPER.light,
    "axes.grid": True,
    "axes.labelcolor": INK.light,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "figure.facecolor": PAPER.light,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.5,
    "grid.color": FAINT.light,
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text
    "text.color": INK.light,
    "text.parse_math": False,  # a name may hold dollars
    "xtick.color": INK.light,
    "ytick.color": INK.light,
}


@dataclass(frozen=True)
class Plot:
    """A plot and its texts.

    Attributes:
        name: of its files, without suffix.
        caption: how to read it.
        alt: what it shows, for screen readers.
        png: the image.
        svg: the same image.
    """

    name: str
    caption: str
    alt: str
    png: bytes
    svg: str


def draw(name: str, height_in: float, fill: Callable[[Figure], None]) -> tuple[bytes, str]:
    """Return a plot as PNG and SVG; the same content gives the same bytes.

    Args:
        name: of the plot; ids in the SVG are derived from it.
        height_in: of the plot, in inches.
        fill: draws on the figure.
    """
    with matplotlib.style.context(["default", STYLE | {"svg.hashsalt": name}]), warnings.catch_warnings():
        # names may be in any script; in the SVG, which the report shows, the browser draws their letters
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        fill(figure)
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # keeps the layout of the SVG; a new one takes as long as drawing
        figure.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return png.getvalue(), svg.getvalue()


def line_options(style: LineStyle, **options: Any) -> dict[str, Any]:
    """Return matplotlib's options of a line in the style of a system."""
    return {"color": style.color.light, "linestyle": dashed(style.dashes), "linewidth": style.width_pt, **options}


def dashed(dashes: Sequence[float]) -> Any:
    """Return dashes in matplotlib's form; no dashes give a solid line."""
    return (0, tuple(dashes)) if dashes else "-"


def height_with_legend(names: Sequence[str]) -> float:
    """Return the height in inches of a plot with a legend of these names."""
    return 3.1 + 0.19 * -(-len(names) // _legend_columns(names))


def add_legend(figure: Figure, handles: Sequence[Line2D], names: Sequence[str]) -> None:
    """Add a legend below the axes, where it hides nothing."""
    # matplotlib leaves out labels that begin with an underscore
    labels = [f" {shortened(name, NAME_LENGTH)}" for name in names]
    columns = _legend_columns(names)
    figure.legend(
        handles, labels, loc="outside lower left", ncols=columns, frameon=False, handlelength=3, fontsize=LEGEND_PT
    )


def _legend_columns(names: Sequence[str]) -> int:
    longest = max((len(name) for name in names), default=0)
    entry_pt = 0.58 * LEGEND_PT * longest + 34  # width of DejaVu's letters and of the sample line
    return max(1, min(3, len(names), int(72 * WIDTH_IN // entry_pt)))


def is_wide(values: Sequence[float]) -> bool:
    """Return whether values differ so much that only a logarithmic axis shows them all."""
    return min(values) > 0 and max(values) > WIDE * min(values)


def log_axis(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis from ``low`` to ``high`` with plain numbers, denser on a short axis."""
    steps = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0) if high / low > 4 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axis.set_minor_formatter(NullFormatter())


def single_axes(figure: Figure, title: str) -> Axes:
    """Add the only axes of a figure."""
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    axes.set_axisbelow(True)
    return axes
