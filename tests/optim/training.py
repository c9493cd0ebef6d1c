"""A few parameters and gradients of all sorts, the same in every process, and what tests do with them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from optim.testing import values

SHAPES = ((), (1,), (7,), (16, 12), (3, 8, 6), (30, 20))


def make_parameters(dtype: torch.dtype = torch.float32, seed: int = 0) -> list[nn.Parameter]:
    """Return one parameter per shape, neither tiny nor zero."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    return [nn.Parameter(value.to(dtype)) for value in values]


def make_gradient(param: Tensor, step: int, place: int) -> Tensor:
    """Return the gradient of the ``place``-th parameter at a step."""
    generator = torch.Generator().manual_seed(1000 * step + place)
    return torch.randn(param.shape, generator=generator, dtype=torch.float64).to(param.dtype)


def run(optimizer: Optimizer, params: Iterable[Tensor], steps: Iterable[int]) -> None:
    """Make the given steps with the gradients that belong to them."""
    params = list(params)
    for step in steps:
        for place, param in enumerate(params):
            param.grad = make_gradient(param, step, place)
        optimizer.step()


def run_both(first: tuple[Optimizer, Any], second: tuple[Optimizer, Any], steps: Iterable[int]) -> None:
    """Make the same steps with two optimizers and their parameters; the second ones get the first ones' gradients."""
    for step in steps:
        run(*first, [step])
        for param, twin in zip(first[1], second[1], strict=True):
            twin.grad = param.grad.to(twin.dtype)
        second[0].step()


def step_with(optimizer: Optimizer, params: Iterable[Tensor], *values: float) -> None:
    """Make a step whose gradients hold one number each, or all the same one."""
    params = list(params)
    for param, value in zip(params, values if len(values) > 1 else values * len(params), strict=True):
        param.grad = torch.full_like(param, value)
    optimizer.step()


def copies(params: Iterable[Tensor]) -> list[nn.Parameter]:
    """Return other parameters of the same values."""
    return [nn.Parameter(value) for value in values(params)]


def named(params: Iterable[Tensor]) -> list[tuple[str, Tensor]]:
    """Return parameters with names."""
    return [(f"layer.{i}", param) for i, param in enumerate(params)]


def duplicates(x: Any) -> tuple[Any, Any]:
    """Return a deep copy, and one that was pickled."""
    return copy.deepcopy(x), pickle.loads(pickle.dumps(x))


def same(first: Iterable[Tensor], second: Iterable[Tensor]) -> bool:
    """Return whether all tensors agree bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def all_moved(first: Iterable[Tensor], second: Iterable[Tensor]) -> bool:
    """Return whether every tensor differs from its former value."""
    return not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
