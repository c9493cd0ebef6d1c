"""Closures of optimizers of other packages: Lightning computes gradients in them, and some never call theirs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer


def calls_closure(optimizer: Optimizer) -> bool:
    """Make a trial update; return whether ``step`` calls its closure, as Lightning expects.

    Args:
        optimizer: of parameters that are thrown away.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    calls = 0

    def closure() -> float:
        nonlocal calls
        calls += 1
        return 0.0

    parameters = inspect.signature(optimizer.step).parameters.values()
    if any(p.name == "closure" or p.kind is p.VAR_KEYWORD for p in parameters):
        optimizer.step(closure=closure)  # LBFGS needs it
    else:
        optimizer.step()
    return calls > 0


def compute_gradients_first(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Call the closure in the place of a ``step`` that would not; a hook of torch's, registered before all others."""
    if (closure := kwargs.get("closure")) is not None:
        closure()
    return args, {name: value for name, value in kwargs.items() if name != "closure"}
