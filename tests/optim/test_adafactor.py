"""What Adafactor has beside the contracts: a step of its own, and a schedule that reports it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from optim import Adafactor, AdafactorSchedule
from optim.adafactor import base_step
from tests.optim.training import step_with


def params() -> list[nn.Parameter]:
    return [nn.Parameter(torch.full((3, 4), 0.5)), nn.Parameter(torch.ones(4))]


def test_the_reported_step_is_the_one_that_was_taken():
    members = params()
    optimizer = Adafactor([{"params": members[:1]}, {"params": members[1:], "scale_parameter": False}])
    schedule, twin = AdafactorSchedule(optimizer, initial_lr=0.25), AdafactorSchedule(Adafactor(params()))
    assert schedule.get_last_lr() == [0.25, 0.25]
    for step in range(1, 4):
        step_with(optimizer, members, 1.0)
        schedule.step()
        size = float(members[0].detach().square().mean().sqrt())
        assert schedule.get_last_lr() == pytest.approx([1e-2 * size, 1e-2])
        assert schedule.last_epoch == step
    assert all(group["lr"] is None for group in optimizer.param_groups)
    twin.load_state_dict(schedule.state_dict())
    assert twin.last_epoch == 3


def test_the_relative_step_falls_with_time_and_warms_up():
    group = Adafactor(params()).param_groups[0]
    warm = Adafactor(params(), warmup_init=True).param_groups[0]
    assert [base_step(group, t) for t in (1, 9_999, 40_000)] == pytest.approx([1e-2, 1e-2, 0.005])
    assert [base_step(warm, t) for t in (1, 100, 1_000_000)] == pytest.approx([1e-6, 1e-4, 1e-3])
