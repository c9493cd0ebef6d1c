"""The choice of each optimizer's lr, on seeds that are not reported: for convergence.py and magnitudes.py.

They differ in what they train and in how they judge it.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from bench.output import positive
from bench.peers import Spec
from rich.console import Console
from rich.progress import Progress

FIRST_REPORTED_SEED = 100

Task = TypeVar("Task")
Trained = TypeVar("Trained")
Score = TypeVar("Score", float, tuple[float, float])  # of what was trained at one lr: the lowest is best
Trainer = Callable[[Sequence[Task]], list[Trained]]


@contextmanager
def open_trainer(train: Callable[[Task], Trained], num_jobs: int) -> Iterator[Trainer[Task, Trained]]:
    """Yield what runs trainings, in so many processes, and shows how far they are; one job needs no other process."""

    def run(progress: Progress, mapped: Callable[..., Iterable[Trained]], tasks: Sequence[Task]) -> list[Trained]:
        return list(progress.track(mapped(train, tasks), len(tasks), description=f"{len(tasks)} trainings"))

    with Progress(console=Console(stderr=True), transient=True) as progress:
        if num_jobs == 1:
            yield partial(run, progress, map)
            return
        with ProcessPoolExecutor(num_jobs, multiprocessing.get_context("spawn")) as pool:
            yield partial(run, progress, pool.map)


def train_groups(trainer: Trainer[Task, Trained], groups: Sequence[Sequence[Task]]) -> list[list[Trained]]:
    """Run the trainings of all groups together, so that no process waits for the end of a group."""
    runs = iter(trainer([task for group in groups for task in group]))
    return [[next(runs) for _ in group] for group in groups]


def reported_seeds(num_seeds: int) -> range:
    """Return the seeds that had no part in the choice of an lr: that is judged on seeds 0, 1, …."""
    return range(FIRST_REPORTED_SEED, FIRST_REPORTED_SEED + num_seeds)


def at_lr(row: Spec, lr: float) -> Spec:
    """Return the row with another lr, of the optimizer of its rest too."""
    rest = None if row.rest is None else at_lr(row.rest, lr)
    return replace(row, options={**row.options, "lr": lr}, rest=rest)


@dataclass(frozen=True)
class LrGrid:
    """The lrs that may be tried, as multiples of a row's own.

    Attributes:
        factors: rising.
        first: those of the first round; after it, others are tried only while the best lr is at an end.
    """

    factors: tuple[float, ...]
    first: slice

    def search(
        self, rows: Sequence[Spec], judge: Callable[[Sequence[Spec]], Sequence[Score]]
    ) -> dict[str, dict[float, Score]]:
        """Try lrs of the rows that have one until each row's best has a neighbor on both sides.

        Args:
            rows: with unlike names; those without lr are left out.
            judge: trains rows, and returns one score each.

        Returns:
            By the name of a row, the scores by lr, rising.
        """
        with_lr = [row for row in rows if "lr" in row.options]
        scores: dict[str, dict[float, Score]] = {row.name: {} for row in with_lr}
        while tried := [at_lr(row, lr) for row in with_lr for lr in self.next_lrs(row.options["lr"], scores[row.name])]:
            for row, score in zip(tried, judge(tried), strict=True):
                scores[row.name][row.options["lr"]] = score
        return {name: dict(sorted(of_row.items())) for name, of_row in scores.items()}

    def next_lrs(self, usual: float, scores: dict[float, Score]) -> list[float]:
        """Return the lrs to try next: those around the usual one, then one at a time beyond the best, then none."""
        lrs = [float(f"{factor * usual:.6g}") for factor in self.factors]  # no 0.009000000000000001 in tables
        if not scores:
            return lrs[self.first]
        place = lrs.index(best_lr(scores))
        return [lr for lr in lrs[max(place - 1, 0) : place + 2] if lr not in scores]


def best_lr(scores: dict[float, Score]) -> float:
    """Return the lr of the lowest score; of equals, the smallest."""
    return min(sorted(scores), key=scores.__getitem__)


def comparison_parser(about: str | None) -> argparse.ArgumentParser:
    """Return the options of a script that chooses each optimizer's lr on some seeds, and trains on others."""
    show_defaults = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0], formatter_class=show_defaults)
    parser.add_argument("--only", default="", help="optimizers, with commas; none: all whose package is installed")
    parser.add_argument("--seeds", type=positive, default=3, help="to choose on, and to report")
    parser.add_argument("--jobs", type=positive, default=1, help="trainings at a time")
    parser.add_argument("--markdown", action="store_true", help="print the tables as a page has them")
    return parser
