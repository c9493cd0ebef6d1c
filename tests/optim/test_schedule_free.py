"""Schedule-Free: where it evaluates and trains, with every rule and resumed, and a rate that follows from the loss."""

from __future__ import annotations

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import optim
from optim import Combined, ScheduleFree, ScheduleFreeAdamW
from optim.schedule_free_adamw import ScaleByRms
from optim.transforms.factored import FactoredMoments
from tests.optim.oracles import divided_by_rms, schedule_free
from tests.optim.oracles import step as slow_step
from tests.optim.training import (
    all_moved,
    copies,
    make_gradient,
    make_parameters,
    named,
    run,
    run_both,
    same,
    step_with,
    values,
)

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
OPTIONS = {"lr": 0.03, "weight_decay": 0.1, "warmup_steps": 4}


def trained(dtype=torch.float32, steps=6):
    params = make_parameters(dtype)
    optimizer = ScheduleFreeAdamW(params, **OPTIONS)
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
    before, keys = values(params), [sorted(state) for state in optimizer.state.values()]
    optimizer.eval()
    assert all_moved(params, before)
    evaluated = values(params)
    with pytest.raises(RuntimeError, match="cannot step"):
        optimizer.step(lambda: pytest.fail("the closure was called"))
    optimizer.eval()
    assert same(params, evaluated)
    for _ in range(2):
        optimizer.train()
        assert same(params, before)
    assert [sorted(state) for state in optimizer.state.values()] == keys


def test_half_precision_parameters_are_evaluated_where_float32_ones_are():
    half, small = trained(torch.bfloat16, steps=0)
    wide = [nn.Parameter(param.detach().float()) for param in small]
    optimizer = ScheduleFreeAdamW(wide, **OPTIONS)
    run_both((half, small), (optimizer, wide), range(30))
    half.eval()
    optimizer.eval()
    torch.testing.assert_close([param.float() for param in small], wide, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("evaluating", [False, True])
def test_a_checkpoint_or_a_copy_of_either_point_continues_bit_for_bit(dtype, evaluating, tmp_path):
    optimizer, params = trained(dtype)
    if evaluating:
        optimizer.eval()
    torch.save({"model": values(params), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    twins = [nn.Parameter(value) for value in saved["model"]]
    loaded = ScheduleFreeAdamW(twins, lr=1.0)
    loaded.load_state_dict(saved["optimizer"])
    copied = copy.deepcopy((optimizer, params))
    optimizer.eval()
    evaluated = values(params)
    optimizer.train()
    run(optimizer, params, range(6, 9))
    for each, its in ((loaded, twins), copied):
        assert each.is_evaluating == evaluating
        each.eval()
        assert same(its, evaluated)
        each.train()
        run(each, its, range(6, 9))
        assert same(its, params)


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
        step_with(optimizer, [param], -1.0)
        steps.append(param.item())
    # z is 1, 1.5, 1.75, and y = x is their plain mean
    assert steps == pytest.approx([1.0, 1.25, 4.25 / 3])


def test_a_rate_of_zero_moves_nothing_and_does_not_count():
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    optimizer, twin = (optim.chain(ScheduleFree(), lr=0.1)(each) for each in (params, twins))
    optimizer.param_groups[0]["lr"] = 0.0
    run(optimizer, params, range(2))
    assert same(params, twins)
    optimizer.param_groups[0]["lr"] = 0.1
    run_both((optimizer, params), (twin, twins), range(2, 5))
    assert same(params, twins)


def test_other_rules_become_schedule_free():
    params = make_parameters(torch.float64)
    optimizer = optim.chain(FactoredMoments(), ScheduleFree(beta=0.8), lr=0.01)(params)
    run(optimizer, params, range(5))
    y, z = values(params), [optimizer.state[param]["z"].clone() for param in params]
    optimizer.eval()
    for param, here, there in zip(params, y, z, strict=True):
        torch.testing.assert_close(here, 0.8 * param.detach() + 0.2 * there)


def test_the_kernel_takes_an_alone_standing_rule_only():
    rule, averaging = ScaleByRms((0.9, 0.99), 1e-8), ScheduleFree()
    assert rule.fuses([averaging])
    assert not any(rule.fuses(later) for later in ([], [averaging, averaging], [ScheduleFree(name="named")]))


def test_members_of_several_optimizers_go_to_their_points_together(params):
    others = [{"pattern": "[01]$", "optimizer": partial(torch.optim.SGD, lr=0.1)}, {"pattern": "."}]
    optimizer = optim.grouped(partial(ScheduleFreeAdamW, lr=0.1), others)(named(params))
    assert isinstance(optimizer, Combined)
    assert optimizer.has_eval_mode
    run(optimizer, params, range(3))
    before = values(params)
    optimizer.eval()
    with pytest.raises(RuntimeError, match="Combined cannot step"):
        optimizer.step()
    assert same(params[:2], before[:2])
    assert all_moved(params[2:], before[2:])
    optimizer.train()
    assert same(params, before)


def test_other_optimizers_are_evaluated_where_they_train(params):
    optimizer = optim.Eve(params)
    run(optimizer, params, range(2))
    before = values(params)
    optimizer.eval()
    assert not optimizer.has_eval_mode
    assert not optimizer.is_evaluating
    assert same(params, before)
    run(optimizer, params, range(1))


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.2, "warmup_steps": 5, "r": 0.5, "betas": (0.8, 0.95)}])
def test_it_equals_the_authors_package(params, options):
    schedulefree = pytest.importorskip("schedulefree", reason="the authors' package, of the group peers")
    theirs = copies(params)
    options = {"lr": 0.02, "betas": (0.9, 0.99), "eps": 1e-6, **options}
    optimizer, other = ScheduleFreeAdamW(params, **options), schedulefree.AdamWScheduleFree(theirs, **options)
    other.train()
    for step in range(25):
        for each in (optimizer, other):
            each.param_groups[0]["lr"] = 0.02 if step < 12 else 0.01  # the weights follow the larger
        run_both((optimizer, params), (other, theirs), [step])
    for mode in ("train", "eval"):
        getattr(optimizer, mode)()
        getattr(other, mode)()
        torch.testing.assert_close(params, theirs, rtol=1e-5, atol=1e-6)


SETTINGS = [
    {},
    {"weight_decay": 3.0, "c_warmup": 3, "r": 2.0, "polyak_beta": 0.8},
    {"sf_beta1": 0.7, "sf_beta1_max": 0.95, "sf_beta1_anneal_steps": 12, "betas": (0.8, 0.9), "lr": 0.5},
]


def plain(params, losses, lr=1.0, betas=(0.9, 0.95), sf_beta1=0.9, sf_beta1_max=0.965, sf_beta1_anneal_steps=0,
          weight_decay=0.0, polyak_beta=0.0, c_warmup=0, r=0.0):  # fmt: skip
    """Return x of every parameter: AdamCScheduleFreePlusPaper of facebookresearch/schedule_free, written out."""
    x, y, z = ([p.clone() for p in params] for _ in range(3))
    m, v = ([torch.zeros_like(p) for p in params] for _ in range(2))
    size = lr_max = weight_sum = 0.0
    for k, loss in enumerate(losses):
        grads = [make_gradient(p, k, place) for place, p in enumerate(params)]
        progress = min(k / sf_beta1_anneal_steps, 1.0) if sf_beta1_anneal_steps else 0.0
        beta = 1 - math.exp(math.log(1 - sf_beta1) * (1 - progress) + math.log(1 - sf_beta1_max) * progress)
        l1 = sum(g.abs().sum().item() for g in grads)
        inner = beta * sum((g * (c - a)).sum().item() for g, c, a in zip(grads, z, x, strict=True))
        size = polyak_beta * size + (1 - polyak_beta) * l1 * math.sqrt(math.pi / 2)
        rate = lr * max(0.0, loss + inner) / (size / (1 - polyak_beta ** (k + 1)))
        lr_max, share = max(rate, lr_max), 1.0
        if k >= c_warmup:
            weight = (k + 1) ** r * lr_max**2
            weight_sum += weight
            share = weight / weight_sum
        for i, g in enumerate(grads):
            m[i] = betas[0] * m[i] + (1 - betas[0]) * g
            v[i] = betas[1] * v[i] + (1 - betas[1]) * g**2
            adam = m[i] / (1 - betas[0] ** (k + 1)) / ((v[i] / (1 - betas[1] ** (k + 1))).sqrt() + 1e-8)
            z[i] = z[i] - rate**2 * weight_decay * y[i] - rate * adam
            x[i] = (1 - share) * x[i] + share * z[i]
            y[i] = beta * x[i] + (1 - beta) * z[i]
    return x


def train(optimizer, params, losses):
    for step, loss in enumerate(losses):

        def closure(step=step, loss=loss):
            for place, param in enumerate(params):
                param.grad = make_gradient(param, step, place)
            return torch.tensor(loss, dtype=torch.float64)

        optimizer.step(closure)


@pytest.mark.parametrize("place", ["cpu", "gpu"])
@pytest.mark.parametrize("options", SETTINGS)
def test_the_authors_steps_are_followed_with_losses(options, place, request):
    if place == "gpu":
        request.getfixturevalue("steps_as_on_a_gpu")
    params = make_parameters(torch.float64) + make_parameters(torch.float64, seed=1)
    start = [p.detach().clone() for p in params]
    losses = [30.0 / (k + 1) for k in range(20)]
    optimizer = optim.ScheduleFreePlus([{"params": params[:6]}, {"params": params[6:]}], **options)
    train(optimizer, params, losses)
    optimizer.eval()
    torch.testing.assert_close([p.detach() for p in params], plain(start, losses, **options), rtol=1e-10, atol=1e-12)


def test_a_step_without_a_loss_keeps_the_rate_and_one_of_a_combination_gets_it():
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    alone, member = optim.ScheduleFreePlus(params), optim.ScheduleFreePlus(twins)
    other = make_parameters()[3]
    train(alone, params, [3.0, 2.0])
    train(optim.Combined([member, optim.AdamW([other])]), twins, [3.0, 2.0])
    assert all(map(torch.equal, params, twins))
    rate = alone.param_groups[0]["shared_state"]["estimated_lr"].clone()
    run(alone, params, [2])
    assert alone.param_groups[0]["shared_state"]["estimated_lr"] == rate != 1


def test_losses_count_in_steps_of_a_graph_and_of_half_precision():
    params = make_parameters()
    twins, small = copies(params), [torch.nn.Parameter(p.detach().bfloat16()) for p in params]
    for owners, options in ((params, {"capturable": True}), (twins, {}), (small, {})):
        train(optim.ScheduleFreePlus(owners, sf_beta1_anneal_steps=3, c_warmup=2, **options), owners, [30.0] * 6)
    torch.testing.assert_close(params, twins)
    torch.testing.assert_close([p.detach().float() for p in small], [p.detach() for p in twins], rtol=0.02, atol=0.02)
