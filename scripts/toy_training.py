"""icefall's toy problem, and a training on it.

Reference:
    icefall, egs/librispeech/ASR/pruned_transducer_stateless7/optim.py, function _test_eve_cain, in the version that
    tests LearnedGradient with lr_epochs=5: widths, data, loss, schedule, smoothing and the lrs of Eve, Cain and
    LearnedGradient. ScaledAdam's lr and clipping are those of the later _test_scaled_adam.
    Differs: nn.Linear for all, not ScaledLinear for some; one seed, set once, for magnitudes, weights and data.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import optim

WIDTH, HIDDEN, BATCH_SHAPE, NUM_BATCHES = 100, 200, (4, 2), 20
SMOOTHING = 0.95


@dataclass(frozen=True)
class Row:
    """One optimizer: its class, its usual lr (None: it chooses its steps and gets no schedule), its other options."""

    name: str
    optimizer: str
    lr: float | None
    options: Mapping[str, Any] = field(default_factory=dict)
    module: str = "optim"


ROWS = (
    Row("AdamW", "AdamW", 1e-3, module="torch.optim"),
    Row("Eve", "Eve", 3e-3),
    Row("Cain", "Cain", 3e-2),
    Row("ScaledAdam", "ScaledAdam", 3e-2, {"clipping_scale": 2.0}),
    Row("LearnedGradient", "LearnedGradient", 3e-2),
    Row("Adafactor, relative step", "Adafactor", None),
    Row("Adafactor", "Adafactor", 2e-2, {"relative_step": False}),
    # at the default of 128 nothing would be factored here
    Row("T5XAdafactor", "T5XAdafactor", 2e-2, {"min_dim_size_to_factor": 32}),
    Row("MaxFactor", "MaxFactor", 1e-2),
    Row("SOAP", "SOAP", 3e-3, {"precondition_frequency": 10}),
)


@dataclass(frozen=True)
class Task:
    """One training."""

    row: Row
    lr: float | None
    seed: int
    num_epochs: int


@dataclass(frozen=True)
class Trained:
    """One training's smoothed loss after every update, and its cost."""

    curve: list[float]
    cpu_s: float


def find_optimizer(row: Row) -> Any:
    """Return the class of a row.

    Raises:
        ValueError: there is none.
    """
    found = getattr(importlib.import_module(row.module), row.optimizer, None)
    if found is None:
        raise ValueError(
            f"{row.module} exports no {row.optimizer}, which row {row.name!r} needs; choose rows with --only"
        )
    return found


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
    options = dict(task.row.options) if task.lr is None else {"lr": task.lr, **task.row.options}
    optimizer: Optimizer = find_optimizer(task.row)(network.named_parameters(), **options)
    schedule = None if task.lr is None else optim.Eden(optimizer, lr_batches=200, lr_epochs=5)
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
