"""Decay of weights that follows a schedule twice, and decay that the update may veto, beside plain forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import optim
from tests.optim.oracles import adamw
from tests.optim.oracles import step as slow_step
from tests.optim.training import copies, make_gradient, make_parameters, run

BETAS, DECAY, LR = (0.8, 0.95), 0.5, 0.05


@pytest.mark.parametrize("place", ["cpu", "gpu"])
@pytest.mark.parametrize("build", [optim.AdamC, lambda *a, **k: optim.AdamW(*a, corrected_weight_decay=True, **k)])
def test_adamc_follows_its_paper_through_a_schedule_with_mixed_groups(build, place, request):
    if place == "gpu":
        request.getfixturevalue("steps_as_on_a_gpu")
    params = make_parameters(torch.float64) + make_parameters(torch.float64, seed=1)
    slow, states = [p.detach().numpy().copy() for p in params], [{} for _ in params]
    groups = [{"params": params[:6]}, {"params": params[6:], "corrected_weight_decay": False}]
    optimizer = build(groups, lr=LR, betas=BETAS, weight_decay=DECAY)
    schedule = optim.WarmupCosine(optimizer, max_steps=30, warmup_steps=5)
    for t in range(30):
        for place, (param, state) in enumerate(zip(params, states, strict=True)):
            options = {**optimizer.param_groups[place // 6], "peak_lr": LR}
            slow[place] = slow_step(adamw, slow[place], make_gradient(param, t, place).numpy(), state, t + 1, options)
        run(optimizer, params, [t])
        schedule.step()
    for param, expected in zip(params, slow, strict=True):
        np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-10, atol=1e-12)


def test_the_largest_rate_is_that_of_the_construction_and_survives_a_resumption():
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    first, second = optim.AdamC(params, lr=LR), optim.AdamC(twins, lr=LR / 10)
    assert first.param_groups[0]["shared_state"]["peak_lr"] == LR
    first.param_groups[0]["lr"] = LR / 3
    second.load_state_dict(first.state_dict())
    run(first, params, range(3))
    run(second, twins, range(3))
    assert all(map(torch.equal, params, twins))


@pytest.mark.parametrize("capturable", [False, True])
def test_a_rate_that_is_a_tensor_decays_alike(capturable):
    params = make_parameters()
    twins = copies(params)
    tensor = optim.AdamC(params, lr=torch.tensor(LR), weight_decay=DECAY, capturable=capturable)
    number = optim.AdamC(twins, lr=LR, weight_decay=DECAY)
    tensor.param_groups[0]["lr"].fill_(LR / 4)
    number.param_groups[0]["lr"] = LR / 4
    run(tensor, params, range(4))
    run(number, twins, range(4))
    torch.testing.assert_close(params, twins)


@pytest.mark.parametrize(
    ("build", "option"),
    [
        (optim.Adafactor, {"weight_decay": 0.3, "lr": LR, "relative_step": False}),
        (optim.MaxFactor, {"weight_decay": 0.3, "lr": LR}),
        (optim.T5XAdafactor, {"weight_decay_rate": 0.05, "lr": LR, "factor_map": "matrices"}),
        (optim.Eve, {"weight_decay": 0.05, "lr": LR, "target_rms": 0.01}),
        (optim.ScheduleFreeAdamW, {"weight_decay": 0.3, "lr": LR}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_rules_with_a_decay_of_their_own_spare_what_the_update_moves_away_from_zero(build, option):
    """Chen et al. 2025, arXiv:2510.12402, algorithm 1: each element decays as without the option, or not at all."""
    decay, *_ = option
    moved = {}
    for how, options in {"none": {decay: 0.0}, "all": {}, "cautious": {"cautious_weight_decay": True}}.items():
        params = make_parameters(torch.float64)[3:]
        start = [p.detach().clone() for p in params]
        run(build(params, **{**option, **options}), params, [0])
        moved[how] = [p.detach() - s for p, s in zip(params, start, strict=True)]
    for p, none, every, cautious in zip(start, *moved.values(), strict=True):
        expected = torch.where(-none * p >= 0, every, none)
        torch.testing.assert_close(cautious, expected, rtol=1e-12, atol=1e-14)
        assert not torch.equal(cautious, none)
        assert not torch.equal(cautious, every)


@pytest.mark.parametrize("how", ["param", "hyperball"])
@pytest.mark.parametrize("build", [optim.AdamW, optim.Lion, optim.Muon])
def test_a_step_is_as_long_as_lr_says_relative_to_the_matrix(build, how):
    params = [*make_parameters(torch.float64)[3:], torch.nn.Parameter(torch.zeros(4, 5, dtype=torch.float64))]
    optimizer = build(params, lr=LR, update_norm=how, min_param_rms=0.5, weight_decay=0.0)
    sizes = [max(p.detach().square().mean().sqrt().item(), 0.5) for p in params]
    for step in range(5):
        before = [p.detach().clone() for p in params]
        run(optimizer, params, [step])
        for p, old, size in zip(params, before, sizes, strict=True):
            new, moved = p.detach().square().mean().sqrt().item(), (p - old).square().mean().sqrt().item()
            if how == "hyperball":
                assert new == pytest.approx(size, rel=1e-12)
            else:
                assert moved == pytest.approx(LR * max(old.square().mean().sqrt().item(), 0.5), rel=1e-12)


def test_a_matrix_on_a_sphere_steps_by_a_graph_and_in_half_precision():
    params, twins = make_parameters(), make_parameters()
    small = [torch.nn.Parameter(p.detach().bfloat16()) for p in params]
    options = {"lr": LR, "update_norm": "hyperball"}
    run(optim.AdamW(params, capturable=True, **options), params, range(6))
    run(optim.AdamW(twins, **options), twins, range(6))
    run(optim.AdamW(small, **options), small, range(6))
    torch.testing.assert_close(params, twins)
    torch.testing.assert_close([p.detach().float() for p in small], [p.detach() for p in twins], rtol=0.02, atol=0.02)
