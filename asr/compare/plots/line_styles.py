"""Color, line and marker of each system, the same in all plots of a report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
