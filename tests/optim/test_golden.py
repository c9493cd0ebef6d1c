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
    for trajectory in (trajectories(case.golden) if case.golden else ())
]


def follow(case: OptimizerCase, trajectory: Trajectory, company: str) -> dict[int, float]:
    """Return the largest relative difference at every step with a snapshot.

    Args:
        case: whose optimizer.
        trajectory: to follow.
        company: "together" in one optimizer, where shapes differ; "alone", each in its own; "stacked" and "as on a
            GPU", each beside a twin of the same shape, whose gradients are four times as large.
    """
    start, gradients = inputs(trajectory.inputs)
    params = {name: nn.Parameter(torch.tensor(value, dtype=trajectory.dtype)) for name, value in start.items()}
    options = case.golden_options(trajectory.hyper)
    twins = {name: nn.Parameter(param.detach().clone()) for name, param in params.items()}
    sets = [list(params.items())]
    if company == "alone":
        sets = [[item] for item in params.items()]
    elif company != "together":
        sets = [[*params.items(), *((f"twin.{name}", twin) for name, twin in twins.items())]]
    optimizers = [case.factory(members, **options) for members in sets]
    differences = {}
    for step, row in enumerate(gradients[: max(trajectory.steps)], start=1):
        for name, param in params.items():
            value = row[name]
            param.grad = None if value is None else torch.tensor(value, dtype=trajectory.dtype)
            twins[name].grad = None if value is None else 4 * param.grad
        for optimizer in optimizers:
            optimizer.step()
        if step in trajectory.steps:
            differences[step] = trajectory.largest_difference(step, params)
    return differences


@pytest.mark.parametrize(("row", "trajectory"), ROWS)
@pytest.mark.parametrize("company", ["together", "alone", "stacked", "as on a GPU"])
def test_the_reference_trajectory_is_followed(row, trajectory, company, request):
    if company == "as on a GPU" and trajectory.kind == "bf16":
        pytest.skip("products of matrices are rounded once less there")
    if company == "as on a GPU":
        request.getfixturevalue("steps_as_on_a_gpu")
    couplings = [reason for option, reason in row.couplings.items() if trajectory.hyper.get(option)]
    if couplings and company != "together":
        pytest.skip(couplings[0])
    differences = follow(row, trajectory, company)
    assert len(differences) == len(trajectory.steps)
    assert max(differences.values()) <= trajectory.tolerance, differences


def test_a_wrong_trajectory_is_noticed():
    _, trajectory = ROWS[0].values
    start, _ = inputs(trajectory.inputs)
    params = {name: torch.tensor(value, dtype=trajectory.dtype) for name, value in start.items()}
    assert trajectory.largest_difference(trajectory.steps[0], params) > trajectory.tolerance
