"""What PyTorch asks of its own optimizers, beyond the contracts in the other files, asked of ours.

Its generic tests (test/test_optim.py) take optimizers of torch.optim alone; these ask for the same in our words.
"""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.optim.training import make_gradient, make_parameters, run, same, values

SCHEDULES = {
    "steps": lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=30),
    "warm-up": lambda optimizer: lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=4),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("lr_is_a_tensor", [False, True], ids=["number", "tensor"])
def test_a_model_learns_under_torchs_schedules(case, schedule, lr_is_a_tensor):
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(10, 5, generator=generator))
    bias = nn.Parameter(torch.randn(10, generator=generator))
    x, y = torch.randn(5, generator=generator), torch.randn(10, generator=generator)
    optimizer = case.factory([{"params": [weight]}, {"params": [bias], "lr": 0.01}], lr=0.02)
    if lr_is_a_tensor:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
    scheduler = SCHEDULES[schedule](optimizer)
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns if it sees no step before a schedule's
        for _ in range(20):
            optimizer.zero_grad()
            loss = (weight.mv(x) + bias - y).square().sum()
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            scheduler.step()
    assert losses[-1] < losses[0]
    assert all(isinstance(group["lr"], torch.Tensor) == lr_is_a_tensor for group in optimizer.param_groups)


def test_dtypes_may_mix_within_a_group(case):
    dtypes = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    together = [param for dtype in dtypes for param in make_parameters(dtype)]
    apart = [nn.Parameter(value) for value in values(together)]
    optimizer = case.factory(together)
    alone = [case.factory([param]) for param in apart]
    for step in range(3):
        for place, (param, twin) in enumerate(zip(together, apart, strict=True)):
            param.grad, twin.grad = make_gradient(param, step, place), make_gradient(twin, step, place)
        optimizer.step()
        for other in alone:
            other.step()
    assert same(together, apart)


def test_gradients_of_zero_leave_parameters_finite(case):
    params = make_parameters()
    optimizer = case.factory(params)
    for _ in range(3):
        for param in params:
            param.grad = torch.zeros_like(param)
        optimizer.step()
    assert all(torch.isfinite(param).all() for param in params)


def test_gradients_and_parameters_stay_the_objects_that_they_are(case):
    params = make_parameters() + make_parameters(torch.bfloat16)
    optimizer = case.factory(params)
    run(optimizer, params, range(1))
    grads, places = [param.grad for param in params], [param.data_ptr() for param in params]
    optimizer.step()
    assert all(param.grad is grad for param, grad in zip(params, grads, strict=True))
    assert [param.data_ptr() for param in params] == places


def test_a_step_changes_no_global_setting(case):
    def settings():
        backends = torch.backends
        return (
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            backends.cudnn.benchmark,
            backends.cudnn.deterministic,
            backends.cudnn.allow_tf32,
            backends.cuda.matmul.allow_tf32,
            backends.opt_einsum.strategy if backends.opt_einsum.is_available() else None,
            backends.mkldnn.flags,
        )

    before = settings()
    params = make_parameters()
    run(case.factory(params), params, range(3))
    assert settings() == before


def test_one_number_as_parameter_can_be_trained_alone(case):
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        param = nn.Parameter(torch.tensor(1.5, dtype=dtype))
        optimizer = case.factory([param], lr=0.1)
        run(optimizer, [param], range(30))
        assert param.shape == ()
        assert torch.isfinite(param)
        assert param != 1.5


def test_state_hooks_may_change_what_is_saved(case):
    params = make_parameters()
    optimizer = case.factory(params)
    run(optimizer, params, range(1))
    seen = []
    optimizer.register_state_dict_pre_hook(lambda owner: seen.append(owner is optimizer))
    optimizer.register_state_dict_post_hook(lambda _, saved: {**saved, "note": 3})
    assert optimizer.state_dict()["note"] == 3
    assert seen == [True]


def test_hooks_of_all_optimizers_run_around_a_step_in_torchs_order(case):
    params = make_parameters()
    optimizer = case.factory(params)
    seen = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("all, before")),
        optimizer.register_step_pre_hook(lambda *_: seen.append("this, before")),
        optimizer.register_step_post_hook(lambda *_: seen.append("this, after")),
        register_optimizer_step_post_hook(lambda *_: seen.append("all, after")),
    ]
    try:
        run(optimizer, params, range(1))
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["all, before", "this, before", "this, after", "all, after"]
    run(optimizer, params, range(1))
    assert len(seen) == 4


def test_a_state_is_saved_in_one_order(case):
    params = make_parameters()
    optimizer = case.factory(params)
    for place in (4, 1, 3):  # gradients come in another order than parameters
        params[place].grad = make_gradient(params[place], 0, place)
        optimizer.step()
    first, second = optimizer.state_dict(), copy.deepcopy(optimizer).state_dict()
    assert list(first["state"]) == list(second["state"])
    assert [list(state) for state in first["state"].values()] == [list(state) for state in second["state"].values()]
    assert repr(first["param_groups"]) == repr(second["param_groups"])


@pytest.mark.parametrize("names_saved", [True, False])
def test_a_state_loads_with_or_without_names(case, names_saved):
    params = make_parameters()
    named = [(f"layer.{i}", param) for i, param in enumerate(params)]
    optimizer = case.factory(named if names_saved else params)
    run(optimizer, params, range(2))
    twins = [nn.Parameter(value) for value in values(params)]
    twin = case.factory(twins if names_saved else [(f"layer.{i}", param) for i, param in enumerate(twins)])
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, range(2, 4))
    run(twin, twins, range(2, 4))
    assert same(params, twins)


def test_defaults_that_are_changed_reach_groups_that_come_later(case):
    optimizer = case.factory(make_parameters())
    optimizer.defaults["maximize"] = True
    optimizer.add_param_group({"params": make_parameters(seed=1)})
    assert [group["maximize"] for group in optimizer.param_groups] == [False, True]


def test_public_attributes_survive_a_deep_copy(case):
    optimizer = case.factory(make_parameters())
    twin = copy.deepcopy(optimizer)
    assert {key for key in vars(optimizer) if not key.startswith("_")} == {
        key for key in vars(twin) if not key.startswith("_")
    }


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU beside the CPU")
def test_parameters_may_lie_on_several_devices(case):
    params = make_parameters() + [nn.Parameter(param.detach().cuda()) for param in make_parameters()]
    twins = [nn.Parameter(param.detach().cpu()) for param in params]
    for owners in (params, twins):
        optimizer = case.factory(owners)
        for step in range(3):
            for place, param in enumerate(owners):
                param.grad = make_gradient(param, step, place % 6).to(param.device)
            optimizer.step()
    for param, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(param.detach().cpu(), twin.detach())
