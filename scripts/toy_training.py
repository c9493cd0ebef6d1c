"""icefall's toy problem, and a training on it.

Reference:
    icefall, egs/librispeech/ASR/pruned_transducer_stateless7/optim.py, function _test_eve_cain, in the version that
    tests LearnedGradient with lr_epochs=5: widths, data, loss, schedule, smoothing and the lrs of Eve, Cain and
    LearnedGradient. ScaledAdam's lr and clipping are those of the later _test_scaled_adam.
    Differs: nn.Linear for all, not ScaledLinear for some; one seed, set once, for magnitudes, weights and data.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from bench_rows import Row, build_optimizer
from torch import Tensor, nn

import optim

WIDTH, HIDDEN, BATCH_SHAPE, NUM_BATCHES = 100, 200, (4, 2), 20
SMOOTHING = 0.95


# those without lr choose their steps, and get no schedule
ROWS = (
    Row("AdamW", "torch.optim", "AdamW", {"lr": 1e-3}),
    Row("Eve", "optim", "Eve", {"lr": 3e-3}),
    Row("Cain", "optim", "Cain", {"lr": 3e-2}),
    Row("ScaledAdam", "optim", "ScaledAdam", {"lr": 3e-2, "clipping_scale": 2.0}),
    Row("LearnedGradient", "optim", "LearnedGradient", {"lr": 3e-2}),
    Row("Adafactor, relative step", "optim", "Adafactor"),
    Row("Adafactor", "optim", "Adafactor", {"lr": 2e-2, "relative_step": False}),
    # at the default of 128 nothing would be factored here
    Row("T5XAdafactor", "optim", "T5XAdafactor", {"lr": 2e-2, "min_dim_size_to_factor": 32}),
    Row("MaxFactor", "optim", "MaxFactor", {"lr": 1e-2}),
    Row("SOAP", "optim", "ForeachSOAP", {"lr": 3e-3, "precondition_frequency": 10}),
)


@dataclass(frozen=True)
class Task:
    """One training."""

    row: Row
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
