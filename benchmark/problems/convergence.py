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
import statistics
import sys
from collections.abc import Sequence

import torch
from bench_rows import Row, find_optimizer
from command_line import comparison_parser, listed, positive, table_text
from convergence_problems import PROBLEMS, Problem, Task, Trained, at_most, train
from lr_search import LrGrid, Trainer, at_lr, best_lr, open_trainer, reported_seeds, train_groups
from rich.table import Table

COMMON = {"lr": 3e-3, "weight_decay": 0.0}  # the middle of the grid
# ours under HeavyBall's names, which have its defaults: the same rules should take the same steps
ROWS = (
    Row("torch_adamw", "torch.optim", "AdamW", COMMON),
    Row("AdamW", "optim", "ForeachAdamW", COMMON),
    Row("SOAP", "optim", "ForeachSOAP", COMMON),
    Row("SOAP_10", "optim", "ForeachSOAP", {**COMMON, "precondition_frequency": 10}),
    Row("PSGDKron", "optim", "ForeachPSGDKron", COMMON),
    Row("Muon", "optim", "ForeachMuon", COMMON, rest=Row("AdamW", "optim", "ForeachAdamW", COMMON)),
    Row("ScheduleFreeAdamW", "optim", "ForeachSFAdamW", COMMON),
    Row("LaProp", "optim", "ForeachLaProp", COMMON),
    Row("ADOPT", "optim", "ForeachADOPT", COMMON),
    Row("RMSprop", "optim", "ForeachRMSprop", COMMON),
    Row("Lion", "optim", "Lion", COMMON),
    Row("pytorch_optimizer_soap", "pytorch_optimizer", "SOAP", COMMON),
    Row("heavyball_adamw", "heavyball", "AdamW", COMMON),
    Row("heavyball_soap", "heavyball", "SOAP", COMMON),
    Row("heavyball_psgd_kron", "heavyball", "PSGDKron", COMMON),
    Row("heavyball_muon", "heavyball", "Muon", COMMON, rest=Row("AdamW", "optim", "ForeachAdamW", COMMON)),
    Row("heavyball_schedule_free", "heavyball", "SFAdamW", COMMON),
    Row("pytorch_optimizer_kron", "pytorch_optimizer", "Kron", COMMON),
    Row("pytorch_optimizer_laprop", "pytorch_optimizer", "LaProp", COMMON),
    Row("pytorch_optimizer_adopt", "pytorch_optimizer", "ADOPT", COMMON),
)
GRID = LrGrid(factors=(0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0), first=slice(2, 5))

Scores = dict[float, tuple[float, float]]  # lr: median steps, and median of the last loss


def search_lrs(
    trainer: Trainer[Task, Trained], rows: Sequence[Row], problem: Problem, num_seeds: int
) -> dict[str, Scores]:
    """Try the lrs of each row: the fewest steps are best, then the lowest loss."""

    def judge(tried: Sequence[Row]) -> list[tuple[float, float]]:
        """Return the medians over the seeds of steps and of the last loss."""
        groups = train_groups(trainer, [[Task(row, problem, seed) for seed in range(num_seeds)] for row in tried])
        return [
            (statistics.median(run.steps for run in runs), statistics.median(run.loss for run in runs))
            for runs in groups
        ]

    return GRID.search(rows, judge)


def results_table(
    trainer: Trainer[Task, Trained], rows: Sequence[Row], problems: Sequence[Problem], num_seeds: int
) -> Table:
    """Choose lrs, train on other seeds, and return what is reported."""
    table = Table("problem", "optimizer")
    for title in ("lr", "steps", "range", "CPU s", "reached", "grid: median steps"):
        table.add_column(title, justify="left" if title.startswith("grid") else "right")
    for problem in problems:
        scores = search_lrs(trainer, rows, problem, num_seeds)
        chosen = [at_lr(row, best_lr(scores[row.name])) for row in rows]
        groups = train_groups(
            trainer, [[Task(row, problem, seed) for seed in reported_seeds(num_seeds)] for row in chosen]
        )
        for row, runs in zip(chosen, groups, strict=True):
            table.add_row(problem.name, *cells(row, scores[row.name], runs))
    return table


def cells(row: Row, scores: Scores, runs: Sequence[Trained]) -> tuple[str, ...]:
    """Return a line of the table without its problem."""
    steps = [run.steps for run in runs]
    return (
        row.name,
        f"{row.options['lr']:g}",
        number(statistics.median(steps)),
        f"{number(min(steps))}–{number(max(steps))}",
        number(statistics.median(run.cpu_s for run in runs), ".3g"),
        f"{sum(map(math.isfinite, steps))}/{len(steps)}",
        " · ".join(f"{lr:g}: {number(steps)}" for lr, (steps, _) in scores.items()),
    )


def number(value: float, form: str = ",.0f") -> str:
    """Return a number, or ∞ where the target was not reached."""
    return format(value, form) if math.isfinite(value) else "∞"


def circumstances(options: argparse.Namespace) -> str:
    """Return what a reader must know to repeat or to doubt the numbers."""
    judged, reported = (", ".join(map(str, seeds)) for seeds in (range(options.seeds), reported_seeds(options.seeds)))
    targets = "; ".join(f"{one.name} ≤ {one.target:.3g} within {one.max_steps} steps" for one in options.problems)
    return (
        f"torch {torch.__version__}, one thread; targets: {targets}. Constant lr, the one of fewest steps of the grid "
        f"on seeds {judged}; steps and CPU seconds are medians over seeds {reported}, range the fewest and the most."
    )


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command line's options, checked; leaves with a message where one cannot be."""
    parser = comparison_parser(__doc__)
    parser.add_argument("--problems", default="", help="problems, with commas (default: all)")
    parser.add_argument("--max-steps", type=positive, help="of a training, if a problem allows more")
    options = parser.parse_args(arguments)
    chosen = listed(parser, options.only, [row.name for row in ROWS])
    problems = listed(parser, options.problems, [problem.name for problem in PROBLEMS])
    options.rows = [row for row in ROWS if row.name in chosen or (not chosen and is_installed(row))]
    options.problems = [at_most(one, options.max_steps) for one in PROBLEMS if not problems or one.name in problems]
    return options


def is_installed(row: Row) -> bool:
    """Return whether a row can be run."""
    try:
        find_optimizer(row)
    except ValueError:
        return False
    return True


def main(arguments: Sequence[str]) -> None:
    """Choose lrs, train and print."""
    options = parsed(arguments)
    for row in options.rows:
        find_optimizer(row)
    with open_trainer(train, options.jobs) as trainer:
        table = results_table(trainer, options.rows, options.problems, options.seeds)
    print(f"{circumstances(options)}\n\n{table_text(table, options.markdown)}")
    print(f"{len(options.rows)} optimizers compared on {len(options.problems)} problems")


if __name__ == "__main__":
    main(sys.argv[1:])
