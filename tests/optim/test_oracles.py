"""The HeavyBall family's rules equal slow forms in NumPy, torch's classes and independent packages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import optim
from tests.optim.cases import CASES, COMMON_RUNS, FAMILY, SINGLE_RUNS
from tests.optim.oracles import corrected
from tests.optim.oracles import step as slow_step
from tests.optim.training import copies, make_gradient, make_parameters, run, run_both, same

RUNS = [(case, options, "own") for case in FAMILY for options in case.oracle_runs]
RUNS += [(case, options, "common") for case in FAMILY for options in COMMON_RUNS]
RUNS += [(case, options, "single") for case in FAMILY if case.optimizer is optim.AdamW for options in SINGLE_RUNS]
ROWS = [
    pytest.param(case, options, id="-".join([case.name, kind, *(f"{name}={value}" for name, value in options.items())]))
    for case, options, kind in RUNS
]


@pytest.mark.parametrize(
    ("repeats", "device"), [(1, "cpu"), (2, "cpu"), (2, "gpu")], ids=["alone", "stacked", "as on a GPU"]
)
@pytest.mark.parametrize(("row", "options"), ROWS)
def test_the_slow_form_is_followed(row, options, repeats, device, request):
    if device == "gpu":
        request.getfixturevalue("steps_as_on_a_gpu")
    params = [param for _ in range(repeats) for param in make_parameters(torch.float64)]
    known = row.factory(params).defaults
    optimizer = row.factory(params, **{name: value for name, value in options.items() if name in known})
    slow = [param.detach().numpy().copy() for param in params]
    # random draws depend on the place of a parameter
    states = [{"name": f"parameter {place} of group 0"} for place in range(len(params))]
    options = optimizer.defaults
    for t in range(1, 26):
        for place, param in enumerate(params):
            param.grad = make_gradient(param, t, place)
        grads = [param.grad.numpy() for param in params]
        pairs = zip(grads, states, strict=True)
        total_norm = np.sqrt(sum(np.sum(corrected(g, state, options) ** 2) for g, state in pairs))
        for place, g in enumerate(grads):
            slow[place] = slow_step(
                row.oracle, slow[place], g, states[place], t, options, total_norm, row.oracle_ending
            )
        optimizer.step()
    for param, expected in zip(params, slow, strict=True):
        np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-10, atol=1e-12)


def test_every_rule_is_compared_with_something():
    assert all((case.golden is None) == (case in FAMILY) == bool(case.oracle_runs) for case in CASES)


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
def test_options_of_the_family_leave_one_call_of_the_kernel(params, monkeypatch, options):
    calls = []
    kernel = torch._fused_adamw_
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *args, **kwargs: (calls.append(1), kernel(*args, **kwargs)))
    run(optim.AdamW(params, **options), params, [0])
    assert calls == [1]


BETAS = (0.8, 0.95)
DECAYED = {"betas": BETAS, "weight_decay": 0.1}
CLIPPED = {**DECAYED, "eps": 0.3}
# the peer counts the steps of ADOPT's bound from the first, which makes none; the paper from the second
ADOPT = {**CLIPPED, "weight_decouple": True, "clip_lambda": lambda step: (step - 1) ** 0.25}


@pytest.mark.parametrize(
    ("name", "options", "theirs"),
    [
        ("LaProp", {"betas": BETAS, "eps": 1e-12}, {"betas": BETAS, "eps": 1e-12}),
        ("ADOPT", CLIPPED, ADOPT),
        ("ADOPT", {**CLIPPED, "clip_exponent": None}, {**ADOPT, "clip_lambda": None}),
        ("Lion", DECAYED, {**DECAYED, "weight_decouple": True}),
    ],
)
def test_pytorch_optimizer_makes_the_same_steps(name, options, theirs):
    peers = pytest.importorskip("pytorch_optimizer", reason="pip install '.[peers]'")
    params = make_parameters(torch.float64)
    twins = copies(params)
    optimizer = getattr(optim, name)(params, lr=0.01, **options)
    run_both((optimizer, params), (getattr(peers, name)(twins, lr=0.01, **theirs), twins), range(25))
    torch.testing.assert_close(params, twins, rtol=1e-5, atol=1e-7)


def test_rmsprop_is_torchs_apart_from_the_correction_of_the_bias():
    params = make_parameters(torch.float64)
    twins = copies(params)
    optimizer = optim.RMSprop(params, lr=0.01, betas=BETAS)
    twin = torch.optim.RMSprop(twins, alpha=BETAS[1], eps=0.0)
    for step in range(25):
        run(optimizer, params, [step])
        # torch divides by an average that begins at zero, and so is too small
        twin.param_groups[0]["lr"] = 0.01 * (1 - BETAS[1] ** (step + 1)) ** 0.5
        run(twin, twins, [step])
    torch.testing.assert_close(params, twins, rtol=1e-5, atol=1e-7)
