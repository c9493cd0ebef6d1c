"""How every optimizer does on icefall's own toy problem, whose inputs and outputs differ much in magnitude.

    PYTHONPATH=scripts python benchmark/problems/magnitudes.py [--only Eve,Cain] [--seeds 3] [--jobs 1] [--markdown]

Two linear layers learn 20 batches by heart. Every optimizer is run at its usual lr and at the best of a grid. The grid
is judged on seeds 0, 1, …; what is reported comes from seeds 100, 101, …, which had no part in that choice. Losses of
several seeds are averaged geometrically. The numbers depend on nothing but the seeds, however many jobs there are.

Reference:
    icefall, egs/librispeech/ASR/pruned_transducer_stateless7/optim.py, function _test_eve_cain, in the version that
    tests LearnedGradient with lr_epochs=5: widths, data, loss, schedule, smoothing and the lrs of Eve, Cain and
    LearnedGradient. ScaledAdam's lr and clipping are those of the later _test_scaled_adam.
    Differs: nn.Linear for all, not ScaledLinear for some; one seed, set once, for magnitudes, weights and data.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from bench.output import listed, positive, table_text
from bench.peers import Spec, build_optimizer
from lr_search import LrGrid, Trainer, at_lr, best_lr, comparison_parser, open_trainer, reported_seeds, train_groups
from rich.table import Table
from torch import Tensor, nn

import optim

WIDTH, HIDDEN, BATCH_SHAPE, NUM_BATCHES = 100, 200, (4, 2), 20
SMOOTHING = 0.95


# those without lr choose their steps, and get no schedule
ROWS = (
    Spec("AdamW", "torch.optim", "AdamW", {"lr": 1e-3}),
    Spec("Eve", "optim", "Eve", {"lr": 3e-3}),
    Spec("Cain", "optim", "Cain", {"lr": 3e-2}),
    Spec("ScaledAdam", "optim", "ScaledAdam", {"lr": 3e-2, "clipping_scale": 2.0}),
    Spec("LearnedGradient", "optim", "LearnedGradient", {"lr": 3e-2}),
    Spec("Adafactor, relative step", "optim", "Adafactor"),
    Spec("Adafactor", "optim", "Adafactor", {"lr": 2e-2, "relative_step": False}),
    # at the default of 128 nothing would be factored here
    Spec("T5XAdafactor", "optim", "T5XAdafactor", {"lr": 2e-2, "min_dim_size_to_factor": 32}),
    Spec("MaxFactor", "optim", "MaxFactor", {"lr": 1e-2}),
    Spec("SOAP", "optim", "SOAP", {"lr": 3e-3}),
    Spec("Rubik", "optim", "Rubik", {"lr": 2e-2}),
)


@dataclass(frozen=True)
class Task:
    """One training."""

    row: Spec
    seed: int
    num_epochs: int


@dataclass(frozen=True)
class Trained:
    """One training's smoothed loss after every update, and its cost."""

    curve: list[float]
    cpu_s: float


def make_problem(seed: int) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Return a network, and batches whose dimensions have log-normal magnitudes."""
    torch.manual_seed(seed)
    input_magnitudes, output_magnitudes = torch.randn(WIDTH).exp(), torch.randn(WIDTH).exp()
    network = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
    shape = (*BATCH_SHAPE, WIDTH)
    return network, [
        (100 * torch.randn(shape) * input_magnitudes, torch.randn(shape) * output_magnitudes)
        for _ in range(NUM_BATCHES)
    ]


def train(task: Task) -> Trained:
    """Train once, on one thread; the loss is infinite from where it stops being a number."""
    torch.set_num_threads(1)
    network, batches = make_problem(task.seed)
    optimizer = build_optimizer(task.row, [*network.named_parameters()])
    schedule = optim.Eden(optimizer, lr_batches=200, lr_epochs=5) if "lr" in task.row.options else None
    curve: list[float] = []
    start = time.process_time()
    for epoch in range(task.num_epochs):
        if schedule is not None:
            schedule.step_epoch(epoch + 1)  # the reference steps the epoch before the first one too
        for inputs, targets in batches:
            loss = (network(inputs) - targets).square().mean() * 100
            value = loss.item()
            if not math.isfinite(value):
                missing = task.num_epochs * NUM_BATCHES - len(curve)
                return Trained(curve + [math.inf] * missing, time.process_time() - start)
            curve.append(SMOOTHING * curve[-1] + (1 - SMOOTHING) * value if curve else value)
            loss.log().backward()
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()
    return Trained(curve, time.process_time() - start)


EPOCHS_SHOWN = (10, 50, 100, 150)
GRID = LrGrid(factors=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0), first=slice(2, 7))

Scores = dict[float, float]  # lr: last smoothed loss


@dataclass(frozen=True)
class Line:
    """What is reported of an optimizer at one lr, a training per seed; ``choice`` says how the lr came about."""

    row: Spec
    choice: str
    runs: list[Trained]

    @property
    def lr(self) -> float | None:
        """Of the schedule's peak; None: the optimizer chooses its steps."""
        return self.row.options.get("lr")

    def curve(self) -> list[float]:
        """Return the smoothed loss after every update, averaged over the seeds."""
        return [average(losses) for losses in zip(*(run.curve for run in self.runs), strict=True)]


def average(losses: Sequence[float]) -> float:
    """Return the geometric mean; one training that diverged makes it infinite."""
    return math.exp(statistics.fmean(math.log(loss) for loss in losses))


def search_lrs(
    trainer: Trainer[Task, Trained], rows: Sequence[Spec], num_seeds: int, num_epochs: int
) -> dict[str, Scores]:
    """Try the lrs of each row that has one: the lowest loss is best."""

    def judge(tried: Sequence[Spec]) -> list[float]:
        """Return the last smoothed loss, averaged over the seeds."""
        groups = train_groups(trainer, [[Task(row, seed, num_epochs) for seed in range(num_seeds)] for row in tried])
        return [average([run.curve[-1] for run in runs]) for runs in groups]

    return GRID.search(rows, judge)


def report(
    trainer: Trainer[Task, Trained], rows: Sequence[Spec], grids: Mapping[str, Scores], num_seeds: int, num_epochs: int
) -> list[Line]:
    """Train on the seeds that no lr was chosen on: each row at its usual lr, and at its best where that is another."""
    chosen: list[tuple[Spec, str]] = []
    for row in rows:
        if row.name not in grids:
            chosen.append((row, "own steps"))
        elif (best := best_lr(grids[row.name])) == row.options["lr"]:
            chosen.append((row, "usual, best"))
        else:
            chosen += [(row, "usual"), (at_lr(row, best), "best")]
    seeds = reported_seeds(num_seeds)
    groups = train_groups(trainer, [[Task(row, seed, num_epochs) for seed in seeds] for row, _ in chosen])
    return [Line(row, choice, runs) for (row, choice), runs in zip(chosen, groups, strict=True)]


def results_table(lines: Sequence[Line], epochs: Sequence[int]) -> Table:
    """Return the reported losses."""
    table = Table("optimizer", "lr", "chosen as")
    for title in (*(f"epoch {epoch}" for epoch in epochs), "range", "CPU s"):
        table.add_column(title, justify="right")
    for line in lines:
        curve, finals = line.curve(), [run.curve[-1] for run in line.runs]
        table.add_row(
            line.row.name,
            "–" if line.lr is None else f"{line.lr:g}",
            line.choice,
            *(f"{curve[epoch * NUM_BATCHES - 1]:.3g}" for epoch in epochs),
            f"{min(finals):.3g}–{max(finals):.3g}",
            f"{statistics.fmean(run.cpu_s for run in line.runs):.1f}",
        )
    return table


def grid_table(grids: Mapping[str, Scores]) -> Table:
    """Return what each lr led to, on the other seeds."""
    table = Table("optimizer", "lr: last smoothed loss")
    for name, grid in grids.items():
        best = best_lr(grid)
        cells = [f"{lr:g}: {loss:.3g}{' (best)' if lr == best else ''}" for lr, loss in grid.items()]
        table.add_row(name, " · ".join(cells))
    return table


def circumstances(options: argparse.Namespace) -> str:
    """Return what a reader must know to repeat or to doubt the numbers."""
    judged, reported = (", ".join(map(str, seeds)) for seeds in (range(options.seeds), reported_seeds(options.seeds)))
    return (
        f"torch {torch.__version__}, one thread; {options.epochs} epochs of {NUM_BATCHES} updates; all that have an lr "
        f"follow Eden(lr_batches=200, lr_epochs=5). Losses are smoothed ({SMOOTHING:g}), averaged geometrically over "
        f"seeds {reported}; range: the lowest and the highest of them at the end. Best: of the grid below, which was "
        f"judged on seeds {judged} alone. Usual: icefall's lr, else the default of the class or of its config."
    )


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command line's options, checked; leaves with a message where one cannot be."""
    parser = comparison_parser(__doc__)
    parser.add_argument("--epochs", type=positive, default=EPOCHS_SHOWN[-1], help="of a training")
    options = parser.parse_args(arguments)
    chosen = listed(parser, options.only, sorted({row.optimizer for row in ROWS}))
    options.rows = [row for row in ROWS if not chosen or row.optimizer in chosen]
    return options


def main(arguments: Sequence[str]) -> None:
    """Choose lrs, train, print and write."""
    options = parsed(arguments)
    with open_trainer(train, options.jobs) as trainer:
        grids = search_lrs(trainer, options.rows, options.seeds, options.epochs)
        lines = report(trainer, options.rows, grids, options.seeds, options.epochs)
    epochs = sorted({*(epoch for epoch in EPOCHS_SHOWN if epoch < options.epochs), options.epochs})
    tables = (results_table(lines, epochs), grid_table(grids))
    print("\n".join([circumstances(options) + "\n", *(table_text(table, options.markdown) for table in tables)]))
    print(f"{len(options.rows)} optimizers compared")


if __name__ == "__main__":
    main(sys.argv[1:])
