"""How much memory an update takes if parameters step within the backward pass, next to stepping after it.

    python scripts/bench in_backward [--layers 24] [--width 1024] [--device cuda]

Each way runs in a process of its own: updates of a deep perceptron by torch's fused AdamW and by SGD, whose state is
smaller. Measured are the most bytes that gradients held at once, counted at every gradient, and the peak of the process
(on a CPU its resident memory, which is approximate), above what it had before the model was built.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import optim
from bench.measure import Row, Setting, alone, peak_mb

FACTORIES: dict[str, Any] = {"AdamW": partial(torch.optim.AdamW, fused=True), "SGD": torch.optim.SGD}
NUM_UPDATES = 3  # the first creates the state


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the size of the model."""
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)


def rows(setting: Setting, _: str) -> Iterator[Row]:
    """Yield what each way takes."""
    for name, within in itertools.product(FACTORIES, (False, True)):
        peaks = alone(measure, setting.options, name, within)
        way = f"{name} {'in' if within else 'after'} the backward pass"
        yield Row(way, {f"{kind}, MB": f"{value:.0f}" for kind, value in peaks.items()})


def measure(options: argparse.Namespace, name: str, within: bool) -> dict[str, float]:
    """Return the peaks of updates, in MB."""
    x, most = torch.randn(16, options.width, device=options.device), 0
    before = peak_mb()
    layers = [nn.Sequential(nn.Linear(options.width, options.width), nn.GELU()) for _ in range(options.layers)]
    model = nn.Sequential(*layers).to(options.device)
    params, factory = list(model.parameters()), FACTORIES[name]

    def count(_: Any) -> None:
        nonlocal most
        most = max(most, sum(param.grad.nbytes for param in params if param.grad is not None))

    for param in params:
        param.register_post_accumulate_grad_hook(count)  # before the hook that steps
    optimizer: Any = optim.step_in_backward(model, factory) if within else factory(params)
    for _ in range(NUM_UPDATES):
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    size = sum(param.nbytes for param in params)
    return {"parameters": size / 2**20, "gradients": most / 2**20, "peak": peak_mb() - before}
