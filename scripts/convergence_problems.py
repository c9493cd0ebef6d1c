"""The problems of compare_convergence.py, and a training on one of them until its target is reached."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from bench_rows import Row, build_optimizer
from torch import Tensor, nn
from torch.optim import Optimizer
from toy_training import make_problem

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

    row: Row
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
    """Return the log loss of icefall's toy problem, see toy_training.py."""
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
