"""Color, line and marker of each system, the same in all plots of a report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Color:
    """One color in both schemes.

    Attributes:
        name: of the variable in the style sheet of the page.
        light: on a light background; also the color in the files of plots.
        dark: on a dark background.
    """

    name: str
    light: str
    dark: str


PAPER = Color("paper", "#ffffff", "#161b22")
INK = Color("ink", "#1f2328", "#e6edf3")
FAINT = Color("faint", "#d5dae0", "#343b45")

# The hues of Okabe and Ito 2002, "Color Universal Design" (jfly.uni-koeln.de/color), without their yellow, moved until
# each has a contrast of at least 3 to its paper and all are as far apart as possible for every kind of color vision.
HUES = (
    Color("hue-1", "#2a4ca0", "#166bb0"),
    Color("hue-2", "#d97603", "#fbcf43"),
    Color("hue-3", "#00a85b", "#22df8c"),
    Color("hue-4", "#af2300", "#fd5d48"),
    Color("hue-5", "#788ed5", "#98b8ff"),
    Color("hue-6", "#bc6996", "#a18398"),
)
COLORS = (PAPER, INK, FAINT, *HUES)

# lengths of dashes and gaps in line widths; () is a solid line
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.6), (1.2, 1.4), (6, 1.5, 1.2, 1.5), (2.4, 1.2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class LineStyle:
    """How one system is drawn.

    Attributes:
        color: of its line.
        dashes: see ``DASHES``.
        marker: matplotlib's name of it.
        width_pt: of its line.
    """

    color: Color
    dashes: tuple[float, ...]
    marker: str
    width_pt: float = 1.6


def line_styles(systems: Sequence[str], baseline: str | None) -> Mapping[str, LineStyle]:
    """Return a style for each system; the baseline has the color of the text.

    The numbers of hues, dashes and markers have no common divisor, so that 210 systems differ.
    """
    others = zip(itertools.cycle(HUES), itertools.cycle(DASHES), itertools.cycle(MARKERS), strict=False)
    own = LineStyle(INK, (), "o", width_pt=2.2)
    return {name: own if name == baseline else LineStyle(*next(others)) for name in systems}
