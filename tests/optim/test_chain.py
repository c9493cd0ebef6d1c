"""Chains of transforms: built-in ones, classes and functions that users write, and chains within chains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import optim
from optim import Transform, chain
from optim.transforms.adam import Adam
from optim.transforms.clipping import Clamp, ClipByGlobalNorm, ClipByRms
from optim.transforms.learning_rate import AbsoluteDecay, DecoupledDecay, LearningRate, WarmupLearningRate
from optim.transforms.momentum import Momentum
from tests.optim.training import (
    all_moved,
    copies,
    duplicates,
    make_gradient,
    make_parameters,
    named,
    run,
    same,
    step_with,
    values,
)


class Sign(Transform):
    """Keeps the sign of the update."""

    def __call__(self, update, batch):
        return update.value().sign()


class Same(Transform):
    """Leaves the update alone, but keeps the kernel from doing all at once."""

    def __call__(self, update, batch):
        return update


each_rule = pytest.mark.parametrize("rule", [[LearningRate()], [Adam(), LearningRate()]], ids=["alone", "fused"])


def adamw(**options):
    return chain(Adam((0.9, 0.98), 1e-6), DecoupledDecay(0.1), LearningRate(), **{"lr": 0.01, **options})


@pytest.mark.parametrize("repeats", [1, 3], ids=["alone", "stacked"])
def test_the_fused_kernel_follows_the_transforms_one_by_one(repeats):
    params = [param for _ in range(repeats) for param in make_parameters(torch.float64)]
    twins, tail = copies(params), [DecoupledDecay(0.1), WarmupLearningRate(3)]
    for each, between in ((params, []), (twins, [Same()])):
        optimizer = chain(Adam((0.8, 0.9), 1e-3), *between, *tail, lr=0.1)(each)
        run(optimizer, each[1:], range(1))  # the first parameter is a step late, which matters during the warm-up
        run(optimizer, each, range(1, 5))
    torch.testing.assert_close(params, twins, rtol=1e-12, atol=0)


def test_a_transform_of_ones_own_needs_one_method(params):
    before = values(params)
    run(chain(Momentum(0.9), Sign(), LearningRate(), lr=0.25)(params), params, range(1))
    for param, start in zip(params, before, strict=True):
        torch.testing.assert_close((param - start).abs(), torch.full_like(start, 0.25))


def test_transforms_act_in_their_order():
    def rms_after(*transforms):
        param = nn.Parameter(torch.zeros(64))
        step_with(chain(*transforms, lr=0.5)([param]), [param], 10.0)
        return param.detach().square().mean().sqrt().item()

    assert rms_after(ClipByRms(2.0), LearningRate()) == pytest.approx(1.0)
    assert rms_after(LearningRate(), ClipByRms(2.0)) == pytest.approx(2.0)


def test_a_norm_over_all_groups_is_measured_before_the_first_parameter_moves(params, twins):
    groups = [{"params": params[:3]}, {"params": params[3:]}]
    optimizer = chain(ClipByGlobalNorm(0.5), Momentum(0.9), LearningRate(), lr=0.1)(groups)
    averages = [torch.zeros_like(twin) for twin in twins]
    for step in range(3):
        run(optimizer, params, [step])
        run(torch.optim.SGD(twins, lr=0.0), twins, [step])
        nn.utils.clip_grad_norm_(twins, 0.5)
        for twin, average in zip(twins, averages, strict=True):
            twin.data.sub_(average.lerp_(twin.grad, 0.1), alpha=0.1)
    torch.testing.assert_close(params, twins)


def test_named_transforms_keep_options_and_statistics_apart(params, twins):
    optimizer = chain(Momentum(0.5, name="short"), Momentum(0.9, name="long"), LearningRate(), lr=0.1)(params)
    assert (optimizer.param_groups[0]["short/beta1"], optimizer.param_groups[0]["long/beta1"]) == (0.5, 0.9)
    run(optimizer, params, range(3))
    assert {"short/exp_avg", "long/exp_avg", "step"} == set(optimizer.state[params[3]])
    short, long = ([torch.zeros_like(twin) for twin in twins] for _ in range(2))
    for step in range(3):
        run(torch.optim.SGD(twins, lr=0.0), twins, [step])
        for i, twin in enumerate(twins):
            short[i].lerp_(twin.grad, 0.5)
            long[i].lerp_(short[i], 0.1)
            twin.data.sub_(long[i], alpha=0.1)
    torch.testing.assert_close(params, twins)


def test_inserting_a_transform_without_statistics_keeps_checkpoints_readable(params, twins):
    """Its options keep the values that the optimizer was built with."""
    optimizer = chain(Momentum(0.9), LearningRate(), lr=0.1)(params)
    run(optimizer, params, range(2))
    clipped = chain(Momentum(0.9), ClipByRms(2.0), LearningRate(), lr=0.5)(twins)
    options = clipped.param_groups[0].keys()
    clipped.load_state_dict(optimizer.state_dict())
    assert clipped.param_groups[0].keys() == options
    assert clipped.param_groups[0]["lr"] == 0.1
    run(clipped, twins, range(2, 3))
    assert [state["step"] for state in clipped.state.values()] == [3] * 6


def test_chains_that_cannot_be_meant_are_refused(params):
    for transforms, message in (
        ([], "at least one transform"),
        ([Momentum(0.5), Momentum(0.9)], "'beta1'"),
        ([Momentum(0.5), Momentum(0.5)], "'exp_avg'"),
    ):
        with pytest.raises(ValueError, match=message):
            chain(*transforms, lr=0.1)(params)


def test_groups_of_a_scheduled_optimizer_can_be_given_to_another():
    first = adamw()([{"params": make_parameters(), "name": "encoder", "lr": 0.5}])
    torch.optim.lr_scheduler.LambdaLR(first, lambda step: 0.1)
    groups = [dict(group) for group in first.param_groups]
    assert {"name", "initial_lr", "shared_state"} <= set(groups[0])
    again = adamw()(groups)
    assert [again.param_groups[0][key] for key in ("name", "initial_lr", "lr")] == ["encoder", 0.5, 0.05]


class Nonnegative(Same):
    """Keeps parameters at 0 or above."""

    acts_after_step = True

    def after_step(self, batch):
        batch.param.clamp_(min=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_rule
def test_a_transform_may_change_parameters_after_their_update(rule, dtype):
    params = [param for _ in range(2) for param in make_parameters(dtype)]
    optimizer = chain(Nonnegative(), *rule, lr=0.01)(params)
    for step in range(2):
        run(optimizer, params, [step])
        elements = torch.cat([param.detach().flatten() for param in params])
        assert elements.min() == 0
        assert elements.max() > 0


@each_rule
def test_a_group_without_gradients_is_left_alone(params, rule):
    optimizer = chain(*rule, lr=0.1)([{"params": params[:3]}, {"params": params[3:]}])
    before = values(params)
    run(optimizer, params[:3], range(1))
    assert same(params[3:], before[3:])
    assert all_moved(params[:3], before[:3])


def test_a_transform_sees_the_names_of_parameters_before_a_step():
    seen = []

    class Seeing(Same):
        def before_step(self, groups):
            seen.extend(entry.name for _, entries in groups for entry in entries)

    make, params = chain(Seeing(), LearningRate(), lr=0.1), make_parameters()
    run(make(named(params)), params, range(1))
    assert seen == [name for name, _ in named(params)]
    seen.clear()
    run(make(params), params, range(1))
    assert set(seen) == {""}


def test_a_group_added_later_has_the_counts_of_the_first():
    params, more = make_parameters(), make_parameters(seed=1)
    optimizer = adamw()(params, skip_nonfinite=True)
    run(optimizer, params, range(2))
    step_with(optimizer, params, float("nan"))
    optimizer.add_param_group({"params": more})
    assert [group["shared_state"] for group in optimizer.param_groups] == [{"steps": 2, "skipped_steps": 1}] * 2


each_number = pytest.mark.parametrize("repeats", [1, 3], ids=["alone", "stacked"])


@optim.transform(state={"total": "zeros"}, allowed={"momentum": "[0, 1)"})
def heavy_ball(update, batch, *, momentum=0.9):
    """Sums updates that fade."""
    return batch.state["total"].mul_(momentum).add_(update)


def clip(update, batch, *, max_norm):
    return update.clamp(-max_norm, max_norm)


@each_number
def test_a_function_is_the_rule_that_it_says(repeats):
    params = [param for _ in range(repeats) for param in make_parameters(torch.float64)]
    twins = copies(params)
    run(optim.chain(heavy_ball(momentum=0.8), LearningRate(), lr=0.1)(params), params, range(5))
    run(torch.optim.SGD(twins, 0.1, momentum=0.8), twins, range(5))
    torch.testing.assert_close(params, twins, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@each_number
def test_statistics_start_as_they_are_declared(dtype, repeats):
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
        seen.append({key: batch.state[key].clone() for key in starts} | {"step": batch.step})
        return update

    params = [param for _ in range(repeats) for param in make_parameters(dtype)[3:4]]
    start = params[0].detach().to(wide, copy=True)
    optimizer = optim.chain(Momentum(0.75), look(), LearningRate(), lr=0.1)(params)
    run(optimizer, params, range(2))
    grad = make_gradient(params[0], 0, 0).to(start.dtype)
    for at_first in seen:
        value = {key: x if repeats == 1 or key == "step" else x[0] for key, x in at_first.items()}
        assert torch.count_nonzero(value["zeros"]) == 0
        assert torch.equal(value["from_param"], start)
        torch.testing.assert_close(value["from_update"], 0.25 * grad)
        assert torch.equal(value["from_gradient"], grad)
        assert value["made"].tolist() == [3.0] * 12
    assert [at["step"] for at in seen] == [1, 2]


def test_options_are_in_the_groups_and_checked(params):
    make = optim.chain(heavy_ball(), LearningRate(), lr=0.1)
    optimizer = make([{"params": params[:3], "momentum": 0.5}, {"params": params[3:]}])
    assert [group["momentum"] for group in optimizer.param_groups] == [0.5, 0.9]
    with pytest.raises(ValueError, match=r"momentum must be a number in \[0, 1\)"):
        optim.chain(heavy_ball(momentum=1.0), lr=0.1)(params)
    with pytest.raises(TypeError, match=r"'momentun' \(did you mean 'momentum'"):
        heavy_ball(momentun=0.5)
    with pytest.raises(TypeError, match="max_norm"):
        optim.transform(clip)()
    with pytest.raises(ValueError, match="'ones'"):
        optim.transform(state={"a": "ones"})


def test_an_optimizer_with_functions_can_be_copied_and_continues(params):
    optimizer = optim.chain(heavy_ball(), optim.Sequential(heavy_ball(), name="b"), LearningRate(), lr=0.1)(params)
    run(optimizer, params, range(2))
    copied = duplicates((optimizer, params))
    run(optimizer, params, range(2, 4))
    for twin, twins in copied:
        run(twin, twins, range(2, 4))
        assert same(params, twins)


def test_a_function_can_be_called_for_every_parameter_alone():
    shapes, params = [], [param for _ in range(3) for param in make_parameters()]

    @optim.transform(stacks=False)
    def look(update, batch):
        shapes.append((update.shape, batch.stacked))
        return update

    twins = copies(params)
    run(optim.chain(heavy_ball(), look(), LearningRate(), lr=0.1)(params), params, range(3))
    run(optim.chain(heavy_ball(), LearningRate(), lr=0.1)(twins), twins, range(3))
    assert shapes[: len(params)] == [(param.shape, False) for param in params]
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
    assert all_moved(params, before)


def test_a_decision_by_values_concerns_one_parameter():
    @optim.transform(stacks=False)
    def skip_small(update, batch):
        if batch.norm(update) < 1:
            raise optim.SkipUpdate
        return update

    params = [nn.Parameter(torch.zeros(3)) for _ in range(3)]
    step_with(optim.chain(skip_small(), LearningRate(), lr=1.0)(params), params, 2.0, 0.1, 3.0)
    assert [param[0].item() for param in params] == [-2.0, 0.0, -3.0]


def test_transforms_in_a_row_do_what_the_chain_does():
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    inner = optim.Sequential(Momentum(0.5), optim.Sequential(Adam((0.8, 0.9)), DecoupledDecay(0.1), name="b"), name="a")
    optimizer = optim.chain(ClipByGlobalNorm(1.0), inner, LearningRate(), lr=0.1)(params)
    flat = [Momentum(0.5), Adam((0.8, 0.9), name="adam"), DecoupledDecay(0.1)]
    run(optimizer, params, range(3))
    run(optim.chain(ClipByGlobalNorm(1.0), *flat, LearningRate(), lr=0.1)(twins), twins, range(3))
    # the kernel, which rounds differently, stands in a chain alone
    torch.testing.assert_close(params, twins, rtol=1e-12, atol=0)
    assert set(optimizer.state[params[0]]) == {"a/exp_avg", "a/b/exp_avg", "a/b/exp_avg_sq", "step"}
    assert {"a/beta1", "a/b/betas", "a/b/weight_decay"} <= optimizer.param_groups[0].keys()


def test_options_within_a_row_are_checked_and_switch_transforms_off(params):
    make = optim.chain(optim.Sequential(Adam(), DecoupledDecay(0.1), name="a"), LearningRate(), lr=0.1)
    with pytest.raises(ValueError, match="a/weight_decay must be"):
        make([{"params": params, "a/weight_decay": -1.0}])
    optimizer = make([{"params": params[:3], "a/weight_decay": 0.0, "a/betas": [0.8, 0.9]}, {"params": params[3:]}])
    assert optimizer.param_groups[0]["a/betas"] == (0.8, 0.9)
    run(optimizer, params, range(2))
    with pytest.raises(ValueError, match="at least one transform"):
        optim.Sequential()
    with pytest.raises(ValueError, match="could mean no decay"):
        optim.chain(optim.Sequential(AbsoluteDecay(0.0, 2.0), name="a"), lr=0.1)(params)


def test_what_acts_after_the_step_or_on_all_gradients_also_acts_within_a_row():
    param = nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([30.0, 40.0])
    inner = optim.Sequential(ClipByGlobalNorm(5.0), LearningRate(), Clamp(3.5), name="a")
    optim.chain(inner, lr=1.0)([param]).step()
    torch.testing.assert_close(param.detach(), torch.tensor([-3.0, -3.5]))


def test_a_row_needs_what_its_transforms_need():
    momentum = Momentum(0.5)
    inner = optim.Sequential(momentum, optim.Sequential(optim.transform(stacks=False)(clip)(max_norm=1.0)), name="a")
    assert (inner.stacks, inner.shardable, momentum.prefix) == (False, False, "")
    inner = optim.Sequential(momentum, DecoupledDecay(0.1))
    assert (inner.stacks, inner.shardable) == (True, True)


@pytest.mark.parametrize("repeats", [1, 2], ids=["alone", "stacked"])
def test_branches_see_the_same_update_and_are_summed(repeats):
    class Double(optim.Transform):
        def __call__(self, update, batch):
            return optim.Update(update.writable().mul_(2.0), overwritable=True)

    params = [nn.Parameter(torch.zeros(3)) for _ in range(repeats)]
    branches = optim.Branches(Double(), Momentum(0.5), Momentum(0.5, name="b"))
    # what leaves the first transform may be overwritten, unless several need it
    optimizer = optim.chain(Double(), branches, lr=1.0)(params)
    step_with(optimizer, params, 4.0)
    assert params[0].tolist() == [-(16.0 + 4.0 + 4.0)] * 3
    assert set(optimizer.state[params[0]]) == {"exp_avg", "b/exp_avg", "step"}
    with pytest.raises(ValueError, match="'exp_avg'"):
        optim.chain(optim.Branches(Momentum(0.5), Momentum(0.5)), lr=0.1)(params)


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


def test_an_option_that_an_optimizer_does_not_have_is_named_with_those_that_it_has():
    with pytest.raises(TypeError, match=r"Muon.*'lrr'.*\blr\b"):
        optim.Muon([nn.Parameter(torch.ones(2))], lrr=0.1)
