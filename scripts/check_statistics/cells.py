"""What a simulation has found, beside what is allowed, and tables of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.025  # of each question, unless a column says 95 %
AGAIN = 4  # times the repetitions for a row that does not hold
Row = Mapping[str, object]


@dataclass(frozen=True)
class Cell:
    """A share of simulated comparisons.

    Attributes:
        share: of them, for which something holds.
        num: comparisons.
        at_most: true share that is allowed; None: any.
        at_least: true share that is asked for; None: any.
    """

    share: float
    num: int
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the share is within two standard errors of what is allowed."""

        def slack(share: float) -> float:
            return 2 * math.sqrt(share * (1 - share) / self.num)

        over = self.at_most is not None and self.share > self.at_most + slack(self.at_most)
        under = self.at_least is not None and self.share < self.at_least - slack(self.at_least)
        return not (over or under)

    def __str__(self) -> str:
        return f"{100 * self.share:.1f}{'' if self.holds else ' !'}"


def cell(events: NDArray[np.bool_], at_most: float | None = None, at_least: float | None = None) -> Cell:
    """Return the share of events."""
    return Cell(float(np.mean(events)), np.size(events), at_most, at_least)


def row_holds(row: Row) -> bool:
    """Whether each cell of a row holds."""
    return all(one.holds for one in row.values() if isinstance(one, Cell))


def repeated(simulate: Callable[[int, int], Row], num: int) -> Row:
    """Return what ``simulate(num, seed)`` finds; of a row that does not hold, what more repetitions find.

    Of a hundred cells that are right just as often as claimed, two are above two standard errors by chance.
    """
    row = simulate(num, 0)
    return row if row_holds(row) else simulate(AGAIN * num, 1)


def print_table(title: str, rows: Iterable[Row]) -> list[str]:
    """Print a row as soon as it is there; return those with a cell that does not hold.

    Args:
        title: of the table.
        rows: by column, the same ones in each.
    """
    failed: list[str] = []
    print(f"\n{title}\n")
    for number, row in enumerate(rows):
        if number == 0:
            print(f"| {' | '.join(row)} |\n{'|---' * len(row)}|")
        text = f"| {' | '.join(map(str, row.values()))} |"
        print(text, flush=True)
        if not row_holds(row):
            failed.append(f"{title}: {text}")
    return failed
