"""Colour, line and marker of each contestant: the same in all pictures of a report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """One colour in both schemes.

    Attributes:
        name: of the variable in the style of the page.
        light: on white paper; that of the files.
        dark: on dark paper.
    """

    name: str
    light: str
    dark: str


PAPER = Colour("paper", "#ffffff", "#161b22")
INK = Colour("ink", "#1f2328", "#e6edf3")
FAINT = Colour("faint", "#d5dae0", "#343b45")

# The hues of Okabe and Ito 2002, "Color Universal Design" (jfly.uni-koeln.de/color), without their yellow, moved until
# each has a contrast of at least 3 to its paper and all are as far apart as possible for every kind of colour vision.
HUES = (
    Colour("hue-1", "#2a4ca0", "#166bb0"),
    Colour("hue-2", "#d97603", "#fbcf43"),
    Colour("hue-3", "#00a85b", "#22df8c"),
    Colour("hue-4", "#af2300", "#fd5d48"),
    Colour("hue-5", "#788ed5", "#98b8ff"),
    Colour("hue-6", "#bc6996", "#a18398"),
)
COLOURS = (PAPER, INK, FAINT, *HUES)

# lengths of dash and gap in widths of the line; () is a whole line
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.6), (1.2, 1.4), (6, 1.5, 1.2, 1.5), (2.4, 1.2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Look:
    """How one contestant is drawn.

    Attributes:
        colour: of its line.
        dashes: see ``DASHES``.
        marker: in the words of matplotlib.
        width_pt: of its line.
    """

    colour: Colour
    dashes: tuple[float, ...]
    marker: str
    width_pt: float = 1.6


def looks(contestants: Sequence[str], baseline: str | None) -> Mapping[str, Look]:
    """Return a look for each contestant; the baseline is drawn in the colour of the text.

    Numbers of hues, lines and markers have no common divisor, so that 210 contestants differ.
    """
    others = zip(itertools.cycle(HUES), itertools.cycle(DASHES), itertools.cycle(MARKERS), strict=False)
    return {name: Look(INK, (), "o", width_pt=2.2) if name == baseline else Look(*next(others)) for name in contestants}
