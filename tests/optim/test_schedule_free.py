"""Schedule-Free: the point of evaluation and the point of training, with every rule, saved and resumed."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import optim
from optim import Combined, ScheduleFree, ScheduleFreeAdamW
from optim.schedule_free_adamw import ScaleByRms
from optim.transforms.factored.moments import FactoredMoments
from tests.optim.oracles.common import step as slow_step
from tests.optim.oracles.schedule_free_adamw import divided_by_rms, schedule_free
from tests.optim.training import make_gradient, make_parameters, run, same, values

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
OPTIONS = {"lr": 0.03, "weight_decay": 0.1, "warmup_steps": 4}


def trained(dtype=torch.float32, steps=6, **options):
    params = make_parameters(dtype)
    optimizer = ScheduleFreeAdamW(params, **OPTIONS, **options)
    run(optimizer, params, range(steps))
    return optimizer, params


def test_it_evaluates_at_the_average_of_the_slow_form():
    optimizer, params = trained(torch.float64)
    optimizer.eval()
    for place, (param, start) in enumerate(zip(params, make_parameters(torch.float64), strict=True)):
        y, state = start.detach().numpy(), {}
        for t in range(1, 7):
            gradient = make_gradient(start, t - 1, place).numpy()
            y = slow_step(divided_by_rms, y, gradient, state, t, optimizer.defaults, ending=schedule_free)
        np.testing.assert_allclose(param.detach().numpy(), state["x"], rtol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_training_goes_on_from_the_same_bits(dtype):
    optimizer, params = trained(dtype)
    before = values(params)
    keys = [sorted(state) for state in optimizer.state.values()]
    optimizer.eval()
    assert not any(torch.equal(param, old) for param, old in zip(params, before, strict=True))
    evaluated = values(params)
    optimizer.eval()
    assert same(params, evaluated)
    optimizer.train()
    assert same(params, before)
    optimizer.train()
    assert same(params, before)
    assert [sorted(state) for state in optimizer.state.values()] == keys


def test_half_precision_parameters_are_evaluated_where_float32_ones_are():
    (wide, wide_params), (half, half_params) = trained(steps=0), trained(torch.bfloat16, steps=0)
    for param, twin in zip(wide_params, half_params, strict=True):
        param.data.copy_(twin.data)
    for step in range(30):
        for place, (param, twin) in enumerate(zip(wide_params, half_params, strict=True)):
            twin.grad = make_gradient(twin, step, place)
            param.grad = twin.grad.float()
        wide.step()
        half.step()
    wide.eval()
    half.eval()
    for param, twin in zip(wide_params, half_params, strict=True):
        torch.testing.assert_close(twin.float(), param.detach(), rtol=2**-8, atol=1e-5)


def test_a_step_at_the_evaluation_point_is_refused_and_changes_nothing():
    optimizer, params = trained()
    optimizer.eval()
    before = values(params)
    with pytest.raises(RuntimeError, match=r"cannot step while .* at the evaluation point; call train\(\)"):
        optimizer.step(lambda: pytest.fail("the closure was called"))
    assert same(params, before)
    fresh = ScheduleFreeAdamW(make_parameters())
    fresh.eval()
    with pytest.raises(RuntimeError, match="cannot step"):
        fresh.step()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("evaluating", [False, True])
def test_a_checkpoint_saved_at_either_point_continues_bit_for_bit(dtype, evaluating, tmp_path):
    optimizer, params = trained(dtype)
    if evaluating:
        optimizer.eval()
    torch.save({"model": values(params), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    twins = [nn.Parameter(value) for value in saved["model"]]
    twin = ScheduleFreeAdamW(twins, lr=1.0)
    twin.load_state_dict(saved["optimizer"])
    assert twin.is_evaluating == evaluating
    for each in (optimizer, twin):
        each.eval()
    assert same(params, twins)
    for each in (optimizer, twin):
        each.train()
    run(optimizer, params, range(6, 9))
    run(twin, twins, range(6, 9))
    assert same(params, twins)


def test_a_copy_at_the_evaluation_point_continues_apart():
    optimizer, params = trained()
    optimizer.eval()
    twin, twins = copy.deepcopy((optimizer, params))
    twin.train()
    run(twin, twins, range(6, 9))
    assert optimizer.is_evaluating
    optimizer.train()
    run(optimizer, params, range(6, 9))
    assert same(params, twins)


def test_a_damaged_checkpoint_of_the_evaluation_point_is_refused():
    optimizer, params = trained()
    optimizer.eval()
    for wrong in (None, torch.zeros(2, 5)):
        saved = copy.deepcopy(optimizer.state_dict())
        del saved["state"][3]["training_point"]
        if wrong is not None:
            saved["state"][3]["training_point"] = wrong
        with pytest.raises(ValueError, match="the state saved for parameter 3 of group 0 does not fit"):
            ScheduleFreeAdamW(params).load_state_dict(saved)


def test_parameters_without_steps_and_later_groups_are_evaluated_where_they_are():
    params, late = make_parameters(), [nn.Parameter(torch.ones(3))]
    optimizer = ScheduleFreeAdamW(params, lr=0.1)
    run(optimizer, params[:2], range(3))
    before = values(params[2:])
    optimizer.eval()
    optimizer.add_param_group({"params": late})
    optimizer.eval()
    assert same(params[2:], before)
    optimizer.train()
    run(optimizer, [*params, *late], range(3, 5))
    assert not optimizer.is_evaluating


def test_a_falling_rate_weights_the_average_by_the_largest_one():
    param, steps = nn.Parameter(torch.zeros(1, dtype=torch.float64)), []
    optimizer = optim.chain(ScheduleFree(beta=1.0), lr=1.0)([param])
    for lr in (1.0, 0.5, 0.25):
        optimizer.param_groups[0]["lr"] = lr
        param.grad = -torch.ones_like(param)
        optimizer.step()
        steps.append(param.item())
    # z is 1, 1.5, 1.75, and y = x is their plain mean
    assert steps == pytest.approx([1.0, 1.25, 4.25 / 3])


def test_a_rate_of_zero_moves_nothing_and_does_not_count():
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    optimizer, twin = (optim.chain(ScheduleFree(), lr=0.1)(each) for each in (params, twins))
    before = values(params)
    optimizer.param_groups[0]["lr"] = 0.0
    run(optimizer, params, range(2))
    assert same(params, before)
    optimizer.param_groups[0]["lr"] = 0.1
    run(optimizer, params, range(2, 5))
    run(twin, twins, range(2, 5))
    assert same(params, twins)


def test_other_rules_become_schedule_free():
    params = make_parameters(torch.float64)
    optimizer = optim.chain(FactoredMoments(), ScheduleFree(beta=0.8), lr=0.01)(params)
    run(optimizer, params, range(5))
    y, z = values(params), [optimizer.state[param]["z"].clone() for param in params]
    optimizer.eval()
    for param, here, there in zip(params, y, z, strict=True):
        torch.testing.assert_close(here, 0.8 * param.detach() + 0.2 * there)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_the_kernel_and_the_two_transforms_agree(weight_decay):
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    options = {"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": weight_decay}
    fused = ScheduleFreeAdamW(params, **options)
    apart = ScheduleFreeAdamW(twins, **{**options, "lr": torch.tensor(0.02, dtype=torch.float64)})
    run(fused, params, range(6))
    run(apart, twins, range(6))
    for param, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(param, twin, rtol=1e-12, atol=1e-12)


def test_the_kernel_takes_an_alone_standing_rule_only():
    rule, averaging = ScaleByRms((0.9, 0.99), 1e-8), ScheduleFree()
    assert rule.fuses([averaging])
    assert not rule.fuses([])
    assert not rule.fuses([averaging, averaging])
    assert not rule.fuses([ScheduleFree(name="named")])


def test_members_of_several_optimizers_go_to_their_points_together():
    params = make_parameters()
    make = optim.grouped(
        partial(ScheduleFreeAdamW, lr=0.1),
        [{"pattern": "[01]", "optimizer": partial(torch.optim.SGD, lr=0.1)}, {"pattern": "."}],
    )
    optimizer = make((str(i), param) for i, param in enumerate(params))
    assert isinstance(optimizer, Combined)
    assert optimizer.has_evaluation_point
    run(optimizer, params, range(3))
    before = values(params)
    optimizer.eval()
    with pytest.raises(RuntimeError, match="Combined cannot step"):
        optimizer.step()
    assert same(params[:2], before[:2])
    assert not any(torch.equal(param, old) for param, old in zip(params[2:], before[2:], strict=True))
    optimizer.train()
    assert same(params, before)


def test_other_optimizers_are_evaluated_where_they_train():
    params = make_parameters()
    optimizer = optim.Eve(params)
    run(optimizer, params, range(2))
    before = values(params)
    optimizer.eval()
    assert not optimizer.has_evaluation_point
    assert not optimizer.is_evaluating
    assert same(params, before)
    run(optimizer, params, range(1))


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.2, "warmup_steps": 5, "r": 0.5, "betas": (0.8, 0.95)}])
def test_it_equals_the_authors_package(options, foreach):
    schedulefree = pytest.importorskip("schedulefree", reason="the authors' package, of the extra peers")
    params, theirs = make_parameters(), make_parameters()
    options = {"lr": 0.02, "betas": (0.9, 0.99), "eps": 1e-6, **options}
    optimizer, other = (
        ScheduleFreeAdamW(params, **options),
        schedulefree.AdamWScheduleFree(theirs, foreach=foreach, **options),
    )
    other.train()
    for step in range(25):
        for each in (optimizer, other):
            each.param_groups[0]["lr"] = 0.02 if step < 12 else 0.01  # the weights follow the larger
        run(optimizer, params, [step])
        run(other, theirs, [step])
    for mode in ("train", "eval"):
        getattr(optimizer, mode)()
        getattr(other, mode)()
        for param, their in zip(params, theirs, strict=True):
            torch.testing.assert_close(param, their, rtol=1e-5, atol=1e-6)
