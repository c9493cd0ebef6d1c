"""The tables of a report as plain data; the terminal and the page show the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asr.compare.result import Verdict
from asr.evaluation.formatting import interval, percent


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


def interval_cell(value: float, low: float, high: float, shown: Callable[[float], str]) -> Cell:
    """Return a difference or a ratio with its interval, as far as it is known."""
    is_bounded = math.isfinite(low) or math.isfinite(high)
    return Cell(shown(value), interval(low, high, shown) if is_bounded else "")


def verdict_cell(verdict: Verdict, detail: str = "") -> Cell:
    """Return a verdict, which a page shows in its color."""
    return Cell(verdict, detail, is_verdict=True)
