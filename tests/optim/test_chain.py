"""New optimizers, composed of transforms by whoever wants one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from optim import Transform, Update, chain
from optim.transforms.adam import Adam
from optim.transforms.clipping import ClipByGlobalNorm, ClipByRms
from optim.transforms.learning_rate import DecoupledDecay, LearningRate, WarmupLearningRate
from optim.transforms.momentum import Momentum
from tests.optim.training import all_moved, copies, make_parameters, named, run, same, step_with, values


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
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_adamw_composed_is_torchs_adamw(dtype, repeats):
    params = [param for _ in range(repeats) for param in make_parameters(dtype)]
    twins = copies(params)
    run(adamw()(params), params, range(5))
    run(torch.optim.AdamW(twins, 0.01, (0.9, 0.98), 1e-6, weight_decay=0.1), twins, range(5))
    torch.testing.assert_close(params, twins, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0)


@pytest.mark.parametrize("repeats", [1, 3], ids=["alone", "stacked"])
def test_the_fused_kernel_follows_the_transforms_one_by_one(repeats):
    params = [param for _ in range(repeats) for param in make_parameters(torch.float64)]
    twins, tail = copies(params), [DecoupledDecay(0.1), WarmupLearningRate(3)]
    for each, between in ((params, []), (twins, [Same()])):
        optimizer = chain(Adam((0.8, 0.9), 1e-3), *between, *tail, lr=0.1)(each)
        run(optimizer, each[1:], range(1))  # the first parameter is a step late, which matters during the warm-up
        run(optimizer, each, range(1, 5))
    torch.testing.assert_close(params, twins, rtol=1e-12, atol=0)


def test_a_transform_of_ones_own_needs_one_method():
    params = make_parameters()
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


def test_a_norm_over_all_groups_is_measured_before_the_first_parameter_moves():
    params, twins = make_parameters(), make_parameters()
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


def test_every_option_can_differ_by_group_and_is_checked():
    params = make_parameters()
    optimizer = adamw()([{"params": params[:3]}, {"params": params[3:], "betas": (0.5, 0.6), "weight_decay": 0.0}])
    assert [group["betas"] for group in optimizer.param_groups] == [(0.9, 0.98), (0.5, 0.6)]
    for wrong, message in (
        ({"betas": (1.0, 0.9)}, r"betas\[0\] must be a number in \[0, 1\)"),
        ({"beta": 1.0}, "'beta'"),
    ):
        with pytest.raises(ValueError, match=message):
            adamw()([{"params": params, **wrong}])


def test_named_transforms_keep_options_and_statistics_apart():
    params, twins = make_parameters(), make_parameters()
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


def test_inserting_a_transform_without_statistics_keeps_checkpoints_readable():
    """Its options keep the values that the optimizer was built with."""
    params, twins = make_parameters(), make_parameters()
    optimizer = chain(Momentum(0.9), LearningRate(), lr=0.1)(params)
    run(optimizer, params, range(2))
    clipped = chain(Momentum(0.9), ClipByRms(2.0), LearningRate(), lr=0.5)(twins)
    options = clipped.param_groups[0].keys()
    clipped.load_state_dict(optimizer.state_dict())
    assert clipped.param_groups[0].keys() == options
    assert clipped.param_groups[0]["lr"] == 0.1
    run(clipped, twins, range(2, 3))
    assert [state["step"] for state in clipped.state.values()] == [3] * 6


def test_chains_that_cannot_be_meant_are_refused():
    params = make_parameters()
    for transforms, message in (
        ([], "at least one transform"),
        ([Momentum(0.5), Momentum(0.9)], "'beta1'"),
        ([Momentum(0.5), Momentum(0.5)], "'exp_avg'"),
    ):
        with pytest.raises(ValueError, match=message):
            chain(*transforms, lr=0.1)(params)


def test_an_update_is_a_direction_times_a_scale():
    direction = torch.ones(2, 3)
    update = Update(direction).times(2.0).times(torch.tensor([[1.0], [2.0]]))
    assert update.value().tolist() == [[2.0] * 3, [4.0] * 3]
    copied = Update(direction).writable().mul_(5)
    assert torch.equal(direction, torch.ones(2, 3))
    assert copied.sum() == 30
    assert Update(direction, 2.0, overwritable=True).writable() is direction


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
def test_a_group_without_gradients_is_left_alone(rule):
    params = make_parameters()
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
