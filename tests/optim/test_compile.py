"""Steps compiled by torch.compile equal the others."""

from __future__ import annotations

import copy
import os
import shutil

import pytest
import torch
from torch import nn

import optim
from optim.transforms.learning_rate import LearningRate
from tests.optim.training import make_parameters, run, same, values

COMPILER = shutil.which(os.environ.get("CXX", "g++"))


def test_modes_are_checked():
    params = make_parameters()
    with pytest.raises(ValueError, match=r"compile_mode must be one of default, reduce-overhead, .* given 'fast'"):
        optim.AdamW(params, compile_mode="fast", capturable=True)
    with pytest.raises(ValueError, match="compile_mode='default' needs capturable=True"):
        optim.AdamW(params, compile_mode="default")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_step_equals_the_others_and_is_compiled_once():
    params = make_parameters()[2:4]
    twins = [nn.Parameter(value) for value in values(params)]
    options = {"lr": 0.01, "weight_decay": 0.1, "warmup_steps": 2}
    optimizer = optim.AdamW(params, **options, capturable=True, compile_mode="default")
    plain = optim.AdamW(twins, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)  # wraps `step`
    for number in range(6):
        for group in plain.param_groups:
            group["lr"] = float(optimizer.param_groups[0]["lr"])
        run(optimizer, params, [number])
        run(plain, twins, [number])
        scheduler.step()
        if number == 1:
            torch._dynamo.utils.counters.clear()
    assert not torch._dynamo.utils.counters["stats"]
    for param, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(param.detach(), twin.detach(), rtol=1e-5, atol=1e-7)
    assert copy.deepcopy(optimizer).compile_mode == "default"


def test_what_is_compiled_is_the_arithmetic_of_a_group(monkeypatch):
    seen = []

    def compiled(function, *, mode):
        return lambda *args: (seen.append(mode), function(*args))

    monkeypatch.setattr(torch, "compile", compiled)
    params, twins = make_parameters(), make_parameters()
    make = optim.chain(LearningRate(), lr=0.1)
    optimizer = make(params, capturable=True, compile_mode="max-autotune")
    run(optimizer, params, range(2))
    run(make(twins), twins, range(2))
    assert same(params, twins)
    assert seen == ["max-autotune"] * 2
    twin, others = copy.deepcopy((optimizer, params))
    run(twin, others, range(1))
    assert len(seen) == 3
    twin.load_state_dict(optimizer.state_dict())
    run(twin, others, range(1))
    assert len(seen) == 4
