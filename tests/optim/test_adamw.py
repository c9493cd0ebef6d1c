"""AdamW is torch's fused class, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import optim
from tests.optim.training import make_parameters, run, same, values

OPTIONS = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-8}


def twins_of(params):
    return [nn.Parameter(value) for value in values(params)]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_twenty_steps_are_torchs_fused_steps_bit_for_bit(dtype, weight_decay):
    params = [*make_parameters(dtype), *make_parameters(dtype, seed=1)]
    twins = twins_of(params)
    options = {**OPTIONS, "weight_decay": weight_decay}
    optimizer, twin = optim.AdamW(params, **options), torch.optim.AdamW(twins, fused=True, **options)
    for step in range(20):
        run(optimizer, params, [step])
        run(twin, twins, [step])
        assert same(params, twins), step
    for param, other in zip(params, twins, strict=True):
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[param][key], twin.state[other][key])


def test_groups_a_schedule_and_a_late_gradient_are_torchs_too():
    params = make_parameters()
    twins = twins_of(params)

    def groups(own):
        return [{"params": own[:2], "weight_decay": 0.3}, {"params": own[2:], "lr": 0.1, "betas": (0.5, 0.6)}]

    optimizer = optim.AdamW(groups(params), **OPTIONS)
    twin = torch.optim.AdamW(groups(twins), fused=True, **{**OPTIONS, "weight_decay": 0.0})
    for step in range(20):
        for chosen, own in ((optimizer, params), (twin, twins)):
            for group in chosen.param_groups:
                group["lr"] *= 0.9
            late = own[3:4] if step < 5 else []
            run(chosen, [param for param in own if not any(param is other for other in late)], [step])
    assert same(params, twins)


def test_no_option_of_the_family_costs_the_kernel_unless_it_is_on(monkeypatch):
    calls = []
    kernel = torch._fused_adamw_
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *args, **kwargs: (calls.append(1), kernel(*args, **kwargs)))
    for options in ({}, {"palm": True}, {"warmup_steps": 2}, {"mars": True}, {"gradient_clipping": "l2"}):
        run(optim.AdamW(make_parameters(), **options), make_parameters(), [])
        calls.clear()
        params = make_parameters()
        run(optim.AdamW(params, **options), params, [0])
        assert len(calls) == 1, options
    params = make_parameters()
    run(optim.AdamW(params, caution=True), params, [0])
    assert len(calls) == 1
