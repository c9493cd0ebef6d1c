"""AdamW is torch's fused class, bit for bit."""

from __future__ import annotations

import pytest
import torch

import optim
from tests.optim.training import copies, make_parameters, run, same

OPTIONS = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.1}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_groups_a_schedule_and_a_late_gradient_are_torchs_fused_steps_bit_for_bit(dtype):
    params = [*make_parameters(dtype), *make_parameters(dtype, seed=1)]
    twins = copies(params)

    def groups(own):
        return [{"params": own[:2], "weight_decay": 0.0}, {"params": own[2:], "lr": 0.1, "betas": (0.5, 0.6)}]

    optimizer = optim.AdamW(groups(params), **OPTIONS)
    twin = torch.optim.AdamW(groups(twins), fused=True, **OPTIONS)
    for step in range(20):
        for chosen, own in ((optimizer, params), (twin, twins)):
            for group in chosen.param_groups:
                group["lr"] *= 0.9
            run(chosen, own[1:] if step < 5 else own, [step])
        assert same(params, twins), step
    for param, other in zip(params, twins, strict=True):
        assert all(
            torch.equal(optimizer.state[param][key], twin.state[other][key]) for key in ("exp_avg", "exp_avg_sq")
        )


@pytest.mark.parametrize("options", [{}, {"palm": True}, {"mars": True, "warmup_steps": 2, "gradient_clipping": "l2"}])
def test_options_of_the_family_leave_one_call_of_the_kernel(monkeypatch, options):
    calls = []
    kernel = torch._fused_adamw_
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *args, **kwargs: (calls.append(1), kernel(*args, **kwargs)))
    params = make_parameters()
    run(optim.AdamW(params, **options), params, [0])
    assert calls == [1]
