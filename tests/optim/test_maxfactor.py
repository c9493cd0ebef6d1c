"""What MaxFactor does to single elements, which are moved by a rule of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from optim import MaxFactor


@pytest.mark.parametrize("max_norm", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 1)])
def test_a_matrix_of_one_element_moves_as_a_single_element(shape, max_norm):
    param = nn.Parameter(torch.full(shape, 2.0, dtype=torch.float64))
    param.grad = torch.full(shape, -0.5, dtype=torch.float64)
    eps, weight = 1e-10, 0.999
    MaxFactor([param], lr=0.1, eps=(eps, 1e-4), weight_decay=0.0, max_norm=max_norm, scalar_boost=3.0).step()
    average = weight * 0.25 / (1 + eps)
    second_moment = average if max_norm else average**2
    expected = 2.0 + 2.0 * 0.1 * 3.0 * 0.5 / (second_moment**0.5 + eps)
    assert param.item() == pytest.approx(expected, rel=1e-9)


def test_the_learning_rates_are_given_by_group():
    params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = MaxFactor([{"params": params[:1]}, {"params": params[1:], "lr": 0.5}])
    assert optimizer._get_lr() == {0: 0.01, 1: 0.5}
