"""What MaxFactor does to single elements, which are moved by a rule of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from optim import MaxFactor
from tests.optim.training import step_with


@pytest.mark.parametrize("max_norm", [True, False])
def test_a_matrix_of_one_element_moves_as_a_single_element(max_norm):
    param = nn.Parameter(torch.full((1, 1), 2.0, dtype=torch.float64))
    eps, weight = 1e-10, 0.999
    step_with(
        MaxFactor([param], lr=0.1, eps=(eps, 1e-4), weight_decay=0.0, max_norm=max_norm, scalar_boost=3.0),
        [param],
        -0.5,
    )
    average = weight * 0.25 / (1 + eps)
    second_moment = average if max_norm else average**2
    expected = 2.0 + 2.0 * 0.1 * 3.0 * 0.5 / (second_moment**0.5 + eps)
    assert param.item() == pytest.approx(expected, rel=1e-9)
