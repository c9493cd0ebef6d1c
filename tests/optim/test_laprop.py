"""LaProp by torch's kernel and by its equations is the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import optim
from tests.optim.training import make_gradient


@pytest.mark.parametrize("palm", [False, True])
def test_a_gradient_that_the_kernel_cannot_take_gives_the_same_step(palm):
    start = torch.randn(16, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    by_kernel, by_equations = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    options = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 0.1, "palm": palm}
    optimizers = [optim.LaProp([param], **options) for param in (by_kernel, by_equations)]
    for step in range(25):
        by_kernel.grad = make_gradient(start, step, 0)
        # another order in memory
        by_equations.grad = by_kernel.grad.t().contiguous().t()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(by_kernel, by_equations, rtol=1e-12, atol=0)
