"""The tables of a report as plain data; the terminal and the page show the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asr.compare.result import Contrast, Scale, Verdict
from asr.evaluation.formatting import interval, percent, points, ratio


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        is_text: whether its cells are words, aligned to the left.
        in_terminal: False for columns that do not fit into 80 characters and that other tables repeat, or few need.
    """

    name: str
    is_text: bool = False
    in_terminal: bool = True


@dataclass(frozen=True)
class Cell:
    """One field of a table.

    Attributes:
        detail: further text, smaller on a page.
    """

    text: str
    detail: str = ""
    is_verdict: bool = False


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows; notes are sentences below it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


SYSTEM = Column("system", is_text=True)


def mean_cell(mean: float | None, sd: float | None, shown: Callable[[float | None], str] = percent) -> Cell:
    """Return a mean with its standard deviation, as far as they are known."""
    return Cell(shown(mean), "" if sd is None else f"± {shown(sd)}")


def contrast_cell(contrast: Contrast, scale: Scale) -> Cell:
    """Return the size of a contrast with its interval, as far as it is known."""
    shown = ratio if scale == "ratio" else points
    nothing = (0.0, math.inf) if scale == "ratio" else (-math.inf, math.inf)
    is_known = (contrast.low, contrast.high) != nothing
    return Cell(shown(contrast.value), interval(contrast.low, contrast.high, shown) if is_known else "")


def verdict_cell(verdict: Verdict, detail: str = "") -> Cell:
    """Return a verdict, which a page shows in its color."""
    return Cell(verdict, detail, is_verdict=True)
