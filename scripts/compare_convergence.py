"""How many steps and CPU seconds optimizers need to a given loss on four small problems.

    python scripts/compare_convergence.py [--only AdamW,SOAP] [--problems copy] [--seeds 3] [--jobs 1] [--markdown]

The lr is constant. Each optimizer and problem has its own, the one of fewest steps of a grid that grows while the best
is at its end. The grid is judged on seeds 0, 1, …; what is reported comes from seeds 100, 101, …, which had no part in
that choice. Weights do not decay. Rows of packages that are not installed are left out, unless they are named. With
several jobs the steps stay the same, and the seconds suffer.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch
from bench_rows import Row, find_optimizer
from convergence_problems import PROBLEMS, Problem, Task, Trained, at_most, train
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

COMMON = {"lr": 3e-3, "weight_decay": 0.0}  # the middle of the grid
ROWS = (
    Row("torch_adamw", "torch.optim", "AdamW", COMMON),
    Row("AdamW", "optim", "AdamW", COMMON),
    Row("SOAP", "optim", "SOAP", COMMON),
    Row("SOAP_10", "optim", "SOAP", {**COMMON, "precondition_frequency": 10}),
    Row("pytorch_optimizer_soap", "pytorch_optimizer", "SOAP", COMMON),
    Row("heavyball_adamw", "heavyball", "AdamW", COMMON),
    Row("heavyball_soap", "heavyball", "SOAP", COMMON),
)
FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
FIRST_FACTORS = slice(2, 5)
FIRST_REPORTED_SEED = 100

Grid = dict[float, tuple[float, float]]  # lr: median steps, and median of the last loss
Trainer = Callable[[Sequence[Task]], list[Trained]]


@contextmanager
def open_trainer(num_jobs: int) -> Iterator[Trainer]:
    """Yield what runs trainings, in so many processes, and shows how far they are; one job needs no other process."""

    def run(progress: Progress, mapped: Callable[..., Iterable[Trained]], tasks: Sequence[Task]) -> list[Trained]:
        return list(progress.track(mapped(train, tasks), len(tasks), description=f"{len(tasks)} trainings"))

    with Progress(console=Console(stderr=True), transient=True) as progress:
        if num_jobs == 1:
            yield partial(run, progress, map)
            return
        with ProcessPoolExecutor(num_jobs, multiprocessing.get_context("spawn")) as pool:
            yield partial(run, progress, pool.map)


def search(trainer: Trainer, rows: Sequence[Row], problem: Problem, num_seeds: int) -> dict[str, Grid]:
    """Try the lrs of each row; go on beyond an end as long as the best is there."""
    grids: dict[str, Grid] = {row.name: {} for row in rows}
    while missing := [(row, lr) for row in rows for lr in next_lrs(row.options["lr"], grids[row.name])]:
        runs = trainer([Task(row, problem, lr, seed) for row, lr in missing for seed in range(num_seeds)])
        for i, (row, lr) in enumerate(missing):
            own = runs[i * num_seeds : (i + 1) * num_seeds]
            steps, losses = [run.steps for run in own], [run.loss for run in own]
            grids[row.name][lr] = statistics.median(steps), statistics.median(losses)
    return grids


def next_lrs(usual: float, grid: Grid) -> list[float]:
    """Return the lrs to try next: those around the usual one, then one at a time beyond the best, then none."""
    lrs = [float(f"{factor * usual:.6g}") for factor in FACTORS]  # no 0.009000000000000001 in tables
    if not grid:
        return lrs[FIRST_FACTORS]
    place = lrs.index(best_lr(grid))
    return [lr for lr in lrs[max(place - 1, 0) : place + 2] if lr not in grid]


def best_lr(grid: Grid) -> float:
    """Return the lr of the fewest steps, then of the lowest loss, then the smallest."""
    return min(sorted(grid), key=grid.__getitem__)


def results_table(trainer: Trainer, rows: Sequence[Row], problems: Sequence[Problem], num_seeds: int) -> Table:
    """Choose lrs, train on other seeds, and return what is reported."""
    table = Table("problem", "optimizer")
    for title in ("lr", "steps", "range", "CPU s", "reached", "grid: median steps"):
        table.add_column(title, justify="left" if title.startswith("grid") else "right")
    for problem in problems:
        grids = search(trainer, rows, problem, num_seeds)
        seeds = range(FIRST_REPORTED_SEED, FIRST_REPORTED_SEED + num_seeds)
        runs = trainer([Task(row, problem, best_lr(grids[row.name]), seed) for row in rows for seed in seeds])
        for i, row in enumerate(rows):
            table.add_row(problem.name, *cells(row, grids[row.name], runs[i * num_seeds : (i + 1) * num_seeds]))
    return table


def cells(row: Row, grid: Grid, runs: Sequence[Trained]) -> tuple[str, ...]:
    """Return a line of the table without its problem."""
    steps = [run.steps for run in runs]
    return (
        row.name,
        f"{best_lr(grid):g}",
        number(statistics.median(steps)),
        f"{number(min(steps))}–{number(max(steps))}",
        number(statistics.median(run.cpu_s for run in runs), ".3g"),
        f"{sum(map(math.isfinite, steps))}/{len(steps)}",
        " · ".join(f"{lr:g}: {number(grid[lr][0])}" for lr in sorted(grid)),
    )


def number(value: float, form: str = ",.0f") -> str:
    """Return a number, or ∞ where the target was not reached."""
    return format(value, form) if math.isfinite(value) else "∞"


def table_text(table: Table, markdown: bool) -> str:
    """Return a table for a page or for a terminal."""
    table.box = box.MARKDOWN if markdown else box.SIMPLE
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n") + "\n"


def circumstances(options: argparse.Namespace) -> str:
    """Return what a reader must know to repeat or to doubt the numbers."""
    judged, reported = (", ".join(str(first + i) for i in range(options.seeds)) for first in (0, FIRST_REPORTED_SEED))
    targets = "; ".join(f"{one.name} ≤ {one.target:.3g} within {one.max_steps} steps" for one in options.problems)
    return (
        f"torch {torch.__version__}, one thread; targets: {targets}. Constant lr, the one of fewest steps of the grid "
        f"on seeds {judged}; steps and CPU seconds are medians over seeds {reported}, range the fewest and the most."
    )


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command line's options, checked; leaves with a message where one cannot be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="rows, with commas (default: all whose package is installed)")
    parser.add_argument("--problems", default="", help="problems, with commas (default: all)")
    parser.add_argument("--seeds", type=positive, default=3, help="to choose on, and to report (default: %(default)s)")
    parser.add_argument("--max-steps", type=positive, help="of a training, if a problem allows more")
    parser.add_argument("--jobs", type=positive, default=1, help="trainings at a time (default: %(default)s)")
    parser.add_argument("--markdown", action="store_true", help="print the table as optim/RESULTS.md has it")
    options = parser.parse_args(arguments)
    chosen = listed(parser, options.only, [row.name for row in ROWS])
    problems = listed(parser, options.problems, [problem.name for problem in PROBLEMS])
    if options.seeds > FIRST_REPORTED_SEED:
        parser.error(f"--seeds: at most {FIRST_REPORTED_SEED}, else lr is chosen on seeds that are reported")
    options.rows = [row for row in ROWS if row.name in chosen or (not chosen and is_installed(row))]
    options.problems = [at_most(one, options.max_steps) for one in PROBLEMS if not problems or one.name in problems]
    return options


def listed(parser: argparse.ArgumentParser, text: str, known: Sequence[str]) -> set[str]:
    """Return the names of a list with commas; leaves with a message where one is unknown."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := names - set(known):
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def is_installed(row: Row) -> bool:
    """Return whether a row can be run."""
    try:
        find_optimizer(row)
    except ValueError:
        return False
    return True


def positive(text: str) -> int:
    """Return a number of at least 1."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def main(arguments: Sequence[str]) -> None:
    """Choose lrs, train and print."""
    options = parsed(arguments)
    try:
        for row in options.rows:
            find_optimizer(row)
    except ValueError as error:
        print(f"compare_convergence: {error}", file=sys.stderr)
        sys.exit(2)
    with open_trainer(options.jobs) as trainer:
        table = results_table(trainer, options.rows, options.problems, options.seeds)
    print(f"{circumstances(options)}\n\n{table_text(table, options.markdown)}")
    print(f"{len(options.rows)} optimizers compared on {len(options.problems)} problems")


if __name__ == "__main__":
    main(sys.argv[1:])
