"""A few parameters and gradients of all sorts, the same in every process."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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


def values(params: Iterable[Tensor]) -> list[Tensor]:
    """Return copies of the parameters' values."""
    return [param.detach().clone() for param in params]


def same(first: Iterable[Tensor], second: Iterable[Tensor]) -> bool:
    """Return whether all tensors agree bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
