"""Every optimizer follows its reference's trajectory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.optim.cases import CASES, OptimizerCase
from tests.optim.golden.reader import Trajectory, inputs, trajectories

ROWS = [
    pytest.param(case, trajectory, id=f"{case.name}-{trajectory.name}-{trajectory.kind}")
    for case in CASES
    for trajectory in trajectories(case.golden)
]


def follow(case: OptimizerCase, trajectory: Trajectory, *, one_by_one: bool) -> dict[int, float]:
    """Return the largest relative difference at every step with a snapshot."""
    start, gradients = inputs(trajectory.inputs)
    params = {name: nn.Parameter(torch.tensor(value, dtype=trajectory.dtype)) for name, value in start.items()}
    options = case.golden_options(trajectory.hyper)
    sets = [[param] for param in params.values()] if one_by_one else [list(params.values())]
    optimizers = [case.factory(members, **options) for members in sets]
    differences = {}
    for step, row in enumerate(gradients[: max(trajectory.steps)], start=1):
        for name, param in params.items():
            value = row[name]
            param.grad = None if value is None else torch.tensor(value, dtype=trajectory.dtype)
        for optimizer in optimizers:
            optimizer.step()
        if step in trajectory.steps:
            differences[step] = trajectory.largest_difference(step, params)
    return differences


@pytest.mark.parametrize(("row", "trajectory"), ROWS)
@pytest.mark.parametrize("one_by_one", [False, True], ids=["together", "one by one"])
def test_the_reference_trajectory_is_followed(row, trajectory, one_by_one):
    differences = follow(row, trajectory, one_by_one=one_by_one)
    assert len(differences) == len(trajectory.steps)
    assert max(differences.values()) <= trajectory.tolerance, differences


def test_every_row_has_trajectories(case):
    assert {trajectory.kind for trajectory in trajectories(case.golden)} >= {"f64", "f32"}


def test_a_wrong_trajectory_is_noticed(case):
    trajectory = next(trajectories(case.golden))
    start, _ = inputs(trajectory.inputs)
    params = {name: torch.tensor(value, dtype=trajectory.dtype) for name, value in start.items()}
    assert trajectory.largest_difference(trajectory.steps[0], params) > trajectory.tolerance
