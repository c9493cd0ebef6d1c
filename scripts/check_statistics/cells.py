"""What a simulation has found, beside what is allowed, and tables of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

ALPHA = 0.05
RARE = 0.00135  # tail beyond three standard errors of a normal distribution


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
        """Whether chance alone may give this share, if the true one is just allowed.

        The tails are binomial: if 5 % are wrong, 7 or more of 40 comparisons are in 3 of 1000 simulations, which three
        standard errors would take for too many.
        """
        count = round(self.share * self.num)
        over = self.at_most is not None and stats.binom.sf(count - 1, self.num, self.at_most) < RARE
        under = self.at_least is not None and stats.binom.cdf(count, self.num, self.at_least) < RARE
        return not (over or under)

    def __str__(self) -> str:
        return f"{100 * self.share:.1f}{'' if self.holds else ' !'}"


def wrong(events: Sequence[bool] | NDArray[np.bool_] | np.bool_) -> Cell:
    """Return the share of wrong comparisons, of which 5 % are allowed."""
    return Cell(float(np.mean(events)), np.size(events), at_most=ALPHA)


def print_table(title: str, rows: Iterable[Mapping[str, object]]) -> list[str]:
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
        if not all(cell.holds for cell in row.values() if isinstance(cell, Cell)):
            failed.append(f"{title}: {text}")
    return failed
