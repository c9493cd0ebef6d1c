"""Transforms that users write as functions, and chains within chains."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import optim
from optim.transforms.adam import Adam
from optim.transforms.clipping.by_global_norm import ClipByGlobalNorm
from optim.transforms.learning_rate import LearningRate
from optim.transforms.momentum import Momentum
from optim.transforms.weight_decay import AbsoluteDecay, DecoupledDecay
from tests.optim.training import make_gradient, make_parameters, run, same, values


@optim.transform(state={"total": "zeros"}, allowed={"momentum": "[0, 1)"})
def heavy_ball(update, batch, *, momentum=0.9):
    """Sums updates that fade."""
    return batch.state["total"].mul_(momentum).add_(update)


@optim.transform
def scale_by_learning_rate(update, batch):
    """Multiplies by lr."""
    return update * batch.group["lr"]


@optim.transform
def l2_normalize_updates(update, batch):
    """Gives every parameter's update the length 1."""
    return update / (batch.norm(update) + 1e-12)


def test_the_users_rules_of_the_reference_run_in_this_form():
    params = make_parameters(torch.float64)
    before = values(params)
    make = optim.chain(l2_normalize_updates(), scale_by_learning_rate(), lr=0.25)
    run(make(params), params, range(1))
    for param, start in zip(params, before, strict=True):
        torch.testing.assert_close(start - param, 0.25 * param.grad / param.grad.norm())


def test_clipping_by_global_norm_takes_its_norm_from_what_it_clips():
    """The reference's example measures gradients, whatever transforms have made of them, and lacks its max_norm."""
    params = make_parameters(torch.float64)
    before = values(params)
    run(optim.chain(ClipByGlobalNorm(0.5), scale_by_learning_rate(), lr=1.0)(params), params, range(1))
    moved = [start - param for param, start in zip(params, before, strict=True)]
    assert torch.nn.utils.get_total_norm(moved) == pytest.approx(0.5)
    with pytest.raises(TypeError, match=r"clip needs a value of max_norm, as in clip\(max_norm=...\)"):
        optim.transform(clip)()


def clip(update, batch, *, max_norm):
    return update.clamp(-max_norm, max_norm)


@pytest.mark.parametrize("copies", [1, 3], ids=["alone", "stacked"])
def test_a_function_is_the_rule_that_it_says(copies):
    params = [param for _ in range(copies) for param in make_parameters(torch.float64)]
    twins = [nn.Parameter(value) for value in values(params)]
    run(optim.chain(heavy_ball(momentum=0.8), LearningRate(), lr=0.1)(params), params, range(5))
    run(torch.optim.SGD(twins, 0.1, momentum=0.8), twins, range(5))
    for param, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(param, twin, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("copies", [1, 2], ids=["alone", "stacked"])
def test_statistics_start_as_they_are_declared(dtype, copies):
    wide = torch.promote_types(dtype, torch.float32)
    starts = {
        "zeros": "zeros",
        "from_param": "param",
        "from_update": "update",
        "from_gradient": "gradient",
        "made": lambda param: param.new_full(param.shape[-1:], 3.0, dtype=wide),
    }
    seen = []

    @optim.transform(state=starts)
    def look(update, batch):
        seen.append({key: batch.state[key].clone() for key in starts} | {"update": update, "step": batch.step})
        return update

    params = [param for _ in range(copies) for param in make_parameters(dtype)[3:4]]
    start = params[0].detach().to(wide, copy=True)
    optimizer = optim.chain(Momentum(0.75), look(), LearningRate(), lr=0.1)(params)
    run(optimizer, params, range(2))
    for at_first in (seen[0], seen[1]):
        grad = make_gradient(params[0], 0, 0).to(start.dtype)
        value = {key: x if copies == 1 or key == "step" else x[0] for key, x in at_first.items()}
        assert torch.count_nonzero(value["zeros"]) == 0
        assert torch.equal(value["from_param"], start)
        torch.testing.assert_close(value["from_update"], 0.25 * grad)
        assert torch.equal(value["from_gradient"], grad)
        assert value["made"].tolist() == [3.0] * 12
    assert [at["step"] for at in seen] == [1, 2]


def test_options_are_in_the_groups_and_checked():
    params = make_parameters()
    make = optim.chain(heavy_ball(), LearningRate(), lr=0.1)
    optimizer = make([{"params": params[:3], "momentum": 0.5}, {"params": params[3:]}])
    assert [group["momentum"] for group in optimizer.param_groups] == [0.5, 0.9]
    with pytest.raises(ValueError, match=r"momentum must be a number in \[0, 1\)"):
        optim.chain(heavy_ball(momentum=1.0), lr=0.1)(params)
    with pytest.raises(TypeError, match=r"heavy_ball has no option 'momentun' \(did you mean 'momentum'\?\)"):
        heavy_ball(momentun=0.5)
    with pytest.raises(ValueError, match=r"statistic 'a' must start as 'zeros', .* or by a function, given 'ones'"):
        optim.transform(state={"a": "ones"})


def test_one_function_is_used_twice_under_a_name():
    params = make_parameters()
    optimizer = optim.chain(heavy_ball(), heavy_ball(momentum=0.5, name="second"), lr=0.1)(params)
    run(optimizer, params, range(1))
    assert optimizer.param_groups[0]["second/momentum"] == 0.5
    assert {"total", "second/total", "step"} == set(optimizer.state[params[0]])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_an_optimizer_with_functions_can_be_copied_and_continues(duplicate):
    params = make_parameters()
    optimizer = optim.chain(heavy_ball(), optim.Sequential(heavy_ball(), name="b"), LearningRate(), lr=0.1)(params)
    run(optimizer, params, range(2))
    twin, twins = duplicate((optimizer, params))
    run(optimizer, params, range(2, 4))
    run(twin, twins, range(2, 4))
    assert same(params, twins)


def test_a_function_can_be_called_for_every_parameter_alone():
    shapes, params = [], [param for _ in range(3) for param in make_parameters()]

    @optim.transform(stacks=False)
    def look(update, batch):
        shapes.append((update.shape, batch.stacked))
        return update

    twins = [nn.Parameter(value) for value in values(params)]
    run(optim.chain(heavy_ball(), look(), LearningRate(), lr=0.1)(params), params, range(3))
    run(optim.chain(heavy_ball(), LearningRate(), lr=0.1)(twins), twins, range(3))
    assert [shape for shape, _ in shapes[: len(params)]] == [param.shape for param in params]
    assert not any(stacked for _, stacked in shapes)
    assert same(params, twins)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tail", [[], [Adam(), DecoupledDecay(0.1)]], ids=["one by one", "fused"])
def test_a_skipped_update_moves_nothing_and_statistics_advance(dtype, tail):
    @optim.transform(state={"seen": "zeros"})
    def wait(update, batch):
        batch.state["seen"] += 1
        if batch.step < 3:
            raise optim.SkipUpdate
        return update

    params = [param for _ in range(2) for param in make_parameters(dtype)]
    before = values(params)
    optimizer = optim.chain(wait(), *tail, LearningRate(), lr=0.1)(params)
    run(optimizer, params, range(2))
    assert same(params, before)
    assert all(state["step"] == 2 and (state["seen"] == 2).all() for state in optimizer.state.values())
    run(optimizer, params, range(2, 3))
    assert not any(torch.equal(param, start) for param, start in zip(params, before, strict=True))


def test_a_decision_by_values_concerns_one_parameter():
    @optim.transform(stacks=False)
    def skip_small(update, batch):
        if batch.norm(update) < 1:
            raise optim.SkipUpdate
        return update

    params = [nn.Parameter(torch.zeros(3)) for _ in range(3)]
    optimizer = optim.chain(skip_small(), LearningRate(), lr=1.0)(params)
    for param, size in zip(params, (2.0, 0.1, 3.0), strict=True):
        param.grad = torch.full((3,), size)
    optimizer.step()
    assert [param[0].item() for param in params] == [-2.0, 0.0, -3.0]


def test_transforms_in_a_row_do_what_the_chain_does():
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    inner = optim.Sequential(Momentum(0.5), optim.Sequential(Adam((0.8, 0.9)), DecoupledDecay(0.1), name="b"), name="a")
    optimizer = optim.chain(ClipByGlobalNorm(1.0), inner, LearningRate(), lr=0.1)(params)
    flat = [Momentum(0.5), Adam((0.8, 0.9), name="adam"), DecoupledDecay(0.1)]
    run(optimizer, params, range(3))
    run(optim.chain(ClipByGlobalNorm(1.0), *flat, LearningRate(), lr=0.1)(twins), twins, range(3))
    for param, twin in zip(params, twins, strict=True):  # the kernel, which rounds differently, stands in a chain alone
        torch.testing.assert_close(param, twin, rtol=1e-12, atol=0)
    names = {"a/exp_avg", "a/b/exp_avg", "a/b/exp_avg_sq", "step"}
    assert set(optimizer.state[params[0]]) == names
    assert {"a/beta1", "a/b/betas", "a/b/weight_decay"} <= optimizer.param_groups[0].keys()


def test_options_within_a_row_are_checked_and_switch_transforms_off():
    params = make_parameters()
    make = optim.chain(optim.Sequential(Adam(), DecoupledDecay(0.1), name="a"), LearningRate(), lr=0.1)
    with pytest.raises(ValueError, match="a/weight_decay must be"):
        make([{"params": params, "a/weight_decay": -1.0}])
    optimizer = make([{"params": params[:3], "a/weight_decay": 0.0, "a/betas": [0.8, 0.9]}, {"params": params[3:]}])
    assert optimizer.param_groups[0]["a/betas"] == (0.8, 0.9)
    run(optimizer, params, range(2))
    with pytest.raises(ValueError, match="a chain needs at least one transform"):
        optim.Sequential()


def test_a_name_leaves_the_transform_itself_alone():
    momentum = Momentum(0.5)
    optim.Sequential(momentum, name="a")
    assert momentum.prefix == ""


def test_what_acts_after_the_step_or_on_all_gradients_also_acts_within_a_row():
    from optim.transforms.clipping.clamp import Clamp

    param = nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([30.0, 40.0])
    inner = optim.Sequential(ClipByGlobalNorm(5.0), LearningRate(), Clamp(3.5), name="a")
    optim.chain(inner, lr=1.0)([param]).step()
    torch.testing.assert_close(param.detach(), torch.tensor([-3.0, -3.5]))


@pytest.mark.parametrize("copies", [1, 2], ids=["alone", "stacked"])
def test_branches_see_the_same_update_and_are_summed(copies):
    @optim.transform
    def overwrite(update, batch):
        return update.clone().fill_(2.0)

    params = [nn.Parameter(torch.zeros(3)) for _ in range(copies)]
    optimizer = optim.chain(optim.Branches(overwrite(), Momentum(0.5), Momentum(0.5, name="b")), lr=1.0)(params)
    for param in params:
        param.grad = torch.full((3,), 4.0)
    optimizer.step()
    assert params[0].tolist() == [-6.0] * 3
    assert set(optimizer.state[params[0]]) == {"exp_avg", "b/exp_avg", "step"}


def test_a_branch_cannot_overwrite_what_the_next_one_gets():
    class Overwrite(optim.Transform):
        def __call__(self, update, batch):
            return optim.Update(update.writable().fill_(2.0), free=True)

    param = nn.Parameter(torch.zeros(3))
    param.grad = torch.full((3,), 4.0)
    # what leaves the first transform may be overwritten, unless several need it
    optim.chain(Overwrite(), optim.Branches(Overwrite(), LearningRate()), lr=3.0)([param]).step()
    assert param.tolist() == [-8.0] * 3


def test_a_row_needs_what_its_transforms_need():
    alone = optim.transform(stacks=False)(clip)
    inner = optim.Sequential(Momentum(0.5), optim.Sequential(alone(max_norm=1.0)))
    assert (inner.stacks, inner.shardable) == (False, False)
    inner = optim.Sequential(Momentum(0.5), DecoupledDecay(0.1))
    assert (inner.stacks, inner.shardable) == (True, True)
    assert inner.options == {"beta1": 0.5, "dtype_momentum": None, "weight_decay": 0.1}
    with pytest.raises(ValueError, match="could mean no decay, or decay by a power of lr alone"):
        optim.chain(optim.Sequential(AbsoluteDecay(0.0, 2.0), name="a"), lr=0.1)(make_parameters())


def test_branches_are_combined_by_a_function():
    param = nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([3.0, 4.0])

    @optim.transform
    def sign(update, batch):
        return update.sign()

    def longer(updates, batch):
        return updates[0] * batch.norm(updates[1])

    optim.chain(optim.Branches(sign(), LearningRate(), combine=longer), lr=2.0)([param]).step()
    torch.testing.assert_close(param.detach(), torch.tensor([-10.0, -10.0]))


def test_branches_with_statistics_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"two transforms keep a statistic called 'exp_avg'"):
        optim.chain(optim.Branches(Momentum(0.5), Momentum(0.5)), lr=0.1)(make_parameters())
