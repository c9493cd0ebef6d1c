"""How many steps and CPU seconds optimizers need to a given loss on four small problems.

    PYTHONPATH=scripts python benchmark/problems/convergence.py [--only AdamW,SOAP] [--problems copy] [--seeds 3]

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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from bench.output import listed, positive, table_text
from bench.peers import Spec, build_optimizer, find_optimizer
from lr_search import LrGrid, Trainer, at_lr, best_lr, comparison_parser, open_trainer, reported_seeds, train_groups
from magnitudes import make_problem
from rich.table import Table
from torch import Tensor, nn
from torch.optim import Optimizer

Named = list[tuple[str, nn.Parameter]]
Loss = Callable[[int], Tensor]
"""Returns what is minimized at a step, counted from 0."""


@dataclass(frozen=True)
class Problem:
    """What is minimized, and how low.

    Attributes:
        name: of the problem.
        begin: returns the parameters and the loss of a seed.
        target: reached when the smoothed loss is at most this.
        max_steps: after which a training gives up.
        smoothing: decay of the average of losses; 0 where nothing is random.
    """

    name: str
    begin: Callable[[int], tuple[Named, Loss]]
    target: float
    max_steps: int
    smoothing: float = 0.0


@dataclass(frozen=True)
class Task:
    """One training."""

    row: Spec
    problem: Problem
    seed: int


@dataclass(frozen=True)
class Trained:
    """Steps and CPU seconds until the target, infinite if it was not reached, and the last smoothed loss."""

    steps: float
    cpu_s: float
    loss: float


def train(task: Task) -> Trained:
    """Train on one thread, at the row's lr throughout."""
    torch.set_num_threads(1)
    problem = task.problem
    named, loss_at = problem.begin(task.seed)
    optimizer: Optimizer = build_optimizer(task.row, named)
    # Schedule-Free has two sets of weights
    if hasattr(optimizer, "train"):
        optimizer.train()
    total, average, start = 0.0, math.inf, time.process_time()
    for step in range(problem.max_steps):
        loss = loss_at(step)
        value = loss.item()
        if not math.isfinite(value):
            return Trained(math.inf, math.inf, math.inf)
        total = problem.smoothing * total + (1 - problem.smoothing) * value
        # over the sum of its weights, as Adam's averages: at first, few losses count
        average = total / (1 - problem.smoothing ** (step + 1))
        if average <= problem.target:
            return Trained(step, time.process_time() - start, average)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Trained(math.inf, math.inf, average)


def quadratic(seed: int, size: int = 20) -> tuple[Named, Loss]:
    """Return tr(Wᵀ A W B) over its first value, of condition 10⁴, whose axes no element of W lies along."""
    random = torch.Generator().manual_seed(seed)
    curvatures = [
        rotation @ torch.logspace(0, -2, size).diag() @ rotation.T
        for rotation in (torch.linalg.qr(torch.randn(size, size, generator=random))[0] for _ in range(2))
    ]
    weight = nn.Parameter(torch.randn(size, size, generator=random))

    def value(w: Tensor) -> Tensor:
        return torch.sum(w * (curvatures[0] @ w @ curvatures[1]))

    first = value(weight.detach()).clone()
    return [("weight", weight)], lambda step: value(weight) / first


def rosenbrock(seed: int) -> tuple[Named, Loss]:
    """Return the banana-shaped valley (1 − x)² + 100 (y − x²)² from near its usual start."""
    start = torch.tensor([-1.2, 1.0]) + 0.1 * torch.randn(2, generator=torch.Generator().manual_seed(seed))
    point = nn.Parameter(start)
    return [("point", point)], lambda step: (1 - point[0]).square() + 100 * (point[1] - point[0].square()).square()


def magnitudes(seed: int) -> tuple[Named, Loss]:
    """Return the log loss of icefall's toy problem, see magnitudes.py."""
    network, batches = make_problem(seed)

    def loss(step: int) -> Tensor:
        inputs, targets = batches[step % len(batches)]
        return ((network(inputs) - targets).square().mean() * 100).log()

    return list(network.named_parameters()), loss


class CopyTransformer(nn.Module):
    """Two layers that see tokens and a separator, and repeat the tokens.

    Legend: B batch, U tokens, V vocabulary, D width.
    """

    def __init__(self, num_tokens: int, vocab_size: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size + 1, width)  # and the separator
        self.positions = nn.Parameter(0.02 * torch.randn(2 * num_tokens, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(width, vocab_size)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(2 * num_tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (B, U, V) logits of the tokens (B, U), each from what came before it."""
        num_tokens = tokens.shape[1]
        separator = torch.full_like(tokens[:, :1], self.embedding.num_embeddings - 1)
        inputs = torch.cat([tokens, separator, tokens[:, :-1]], dim=1)
        encoded = self.layers(self.embedding(inputs) + self.positions, mask=self.mask, is_causal=True)
        logits: Tensor = self.output(encoded[:, num_tokens:])
        return logits


def copy_task(seed: int, num_tokens: int = 10, vocab_size: int = 16, batch_size: int = 16) -> tuple[Named, Loss]:
    """Return a small transformer that learns to repeat random tokens, and its cross entropy in nats per token."""
    torch.manual_seed(seed)
    network = CopyTransformer(num_tokens, vocab_size, width=64)
    random = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        tokens = torch.randint(vocab_size, (batch_size, num_tokens), generator=random)
        return nn.functional.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten())

    return list(network.named_parameters()), loss


PROBLEMS = (
    Problem("quadratic", quadratic, target=1e-4, max_steps=2000),
    Problem("rosenbrock", rosenbrock, target=1e-3, max_steps=5000),
    Problem("magnitudes", magnitudes, target=math.log(300), max_steps=3000, smoothing=0.95),
    Problem("copy", copy_task, target=0.1, max_steps=1500, smoothing=0.9),
)


def at_most(problem: Problem, max_steps: int | None) -> Problem:
    """Return the problem with fewer steps, if a number is given."""
    return problem if max_steps is None else replace(problem, max_steps=min(max_steps, problem.max_steps))


COMMON = {"lr": 3e-3, "weight_decay": 0.0}  # the middle of the grid
# ours under HeavyBall's names, which have its defaults: the same rules should take the same steps
ROWS = (
    Spec("torch_adamw", "torch.optim", "AdamW", COMMON),
    Spec("AdamW", "optim", "ForeachAdamW", COMMON),
    Spec("SOAP", "optim", "ForeachSOAP", COMMON),
    Spec("SOAP_10", "optim", "ForeachSOAP", {**COMMON, "precondition_frequency": 10}),
    Spec("PSGDKron", "optim", "ForeachPSGDKron", COMMON),
    Spec("Muon", "optim", "ForeachMuon", COMMON, rest=Spec("AdamW", "optim", "ForeachAdamW", COMMON)),
    Spec("ScheduleFreeAdamW", "optim", "ForeachSFAdamW", COMMON),
    Spec("LaProp", "optim", "ForeachLaProp", COMMON),
    Spec("ADOPT", "optim", "ForeachADOPT", COMMON),
    Spec("RMSprop", "optim", "ForeachRMSprop", COMMON),
    Spec("Lion", "optim", "Lion", COMMON),
    Spec("pytorch_optimizer_soap", "pytorch_optimizer", "SOAP", COMMON),
    Spec("heavyball_adamw", "heavyball", "AdamW", COMMON),
    Spec("heavyball_soap", "heavyball", "SOAP", COMMON),
    Spec("heavyball_psgd_kron", "heavyball", "PSGDKron", COMMON),
    Spec("heavyball_muon", "heavyball", "Muon", COMMON, rest=Spec("AdamW", "optim", "ForeachAdamW", COMMON)),
    Spec("heavyball_schedule_free", "heavyball", "SFAdamW", COMMON),
    Spec("pytorch_optimizer_kron", "pytorch_optimizer", "Kron", COMMON),
    Spec("pytorch_optimizer_laprop", "pytorch_optimizer", "LaProp", COMMON),
    Spec("pytorch_optimizer_adopt", "pytorch_optimizer", "ADOPT", COMMON),
)
GRID = LrGrid(factors=(0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0), first=slice(2, 5))

Scores = dict[float, tuple[float, float]]  # lr: median steps, and median of the last loss


def search_lrs(
    trainer: Trainer[Task, Trained], rows: Sequence[Spec], problem: Problem, num_seeds: int
) -> dict[str, Scores]:
    """Try the lrs of each row: the fewest steps are best, then the lowest loss."""

    def judge(tried: Sequence[Spec]) -> list[tuple[float, float]]:
        """Return the medians over the seeds of steps and of the last loss."""
        groups = train_groups(trainer, [[Task(row, problem, seed) for seed in range(num_seeds)] for row in tried])
        return [
            (statistics.median(run.steps for run in runs), statistics.median(run.loss for run in runs))
            for runs in groups
        ]

    return GRID.search(rows, judge)


def results_table(
    trainer: Trainer[Task, Trained], rows: Sequence[Spec], problems: Sequence[Problem], num_seeds: int
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


def cells(row: Spec, scores: Scores, runs: Sequence[Trained]) -> tuple[str, ...]:
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


def is_installed(row: Spec) -> bool:
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
