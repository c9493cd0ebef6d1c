"""What holds for every optimizer: one step at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from tests.optim.training import make_gradient, make_parameters, run, same, values

HALF = [torch.float16, torch.bfloat16]
DTYPES = [torch.float64, torch.float32, *HALF]


def test_a_badly_conditioned_quadratic_is_lowered(case):
    generator = torch.Generator().manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(10, 10, generator=generator))
    hessian = rotation @ torch.diag(torch.logspace(0, 2, 10)) @ rotation.T
    param = nn.Parameter(torch.randn(10, generator=generator))
    optimizer = case.factory([param], **case.quadratic)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = param @ hessian @ param / 2
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.01 * losses[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parameters_keep_their_type_and_statistics_are_at_least_float32(case, dtype):
    params = make_parameters(dtype)
    optimizer = case.factory(params)
    run(optimizer, params, range(2))
    wide = torch.float32 if dtype in HALF else dtype
    for param in params:
        assert (param.dtype, param.device.type) == (dtype, "cpu")
        for key, value in optimizer.state[param].items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == (dtype if key == "rounding_error" else wide), key


def test_a_large_matrix_costs_the_stated_bytes_of_state(case):
    param = nn.Parameter(torch.randn(300, 200))
    optimizer = case.factory([param])
    run(optimizer, [param], range(1))
    tensors = [value for value in optimizer.state[param].values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.nbytes for tensor in tensors) / param.numel() == pytest.approx(case.state_bytes)


def test_a_parameter_without_gradient_is_untouched_and_keeps_no_state(case):
    params = make_parameters()
    before = values(params)
    optimizer = case.factory(params)
    for place in (1, 3):
        params[place].grad = make_gradient(params[place], 0, place)
    optimizer.step()
    for place, param in enumerate(params):
        assert torch.equal(param, before[place]) == (place not in (1, 3))
        assert (param in optimizer.state) == (place in (1, 3))


def test_a_parameter_whose_gradients_come_late_does_what_it_would_have_done_at_first(case):
    late, early = make_parameters()[3], make_parameters()[3]
    other = make_parameters()[2]
    optimizer = case.factory([late, other])
    run(optimizer, [other], range(5))
    late.grad, other.grad = make_gradient(late, 0, 3), None
    optimizer.step()
    early.grad = make_gradient(early, 0, 3)
    case.factory([early]).step()
    assert torch.equal(late, early)


def test_a_step_without_any_gradient_changes_nothing(case):
    params = make_parameters()
    before = values(params)
    optimizer = case.factory(params)
    optimizer.step()
    assert same(params, before)
    assert not optimizer.state


def test_one_parameters_nan_does_not_reach_the_others(case):
    params, clean = make_parameters(), make_parameters()
    optimizer, clean_optimizer = case.factory(params), case.factory(clean)
    for place, (param, twin) in enumerate(zip(params, clean, strict=True)):
        twin.grad = make_gradient(twin, 0, place)
        param.grad = torch.full_like(param, float("nan")) if place == 3 else twin.grad.clone()
    optimizer.step()
    clean_optimizer.step()
    assert same(params[:3] + params[4:], clean[:3] + clean[4:])


def test_gradients_whose_squares_overflow_end_no_run(case):
    """The guard of a run counts updates that are not finite; an exception would end it at the first."""
    params = make_parameters()
    optimizer = case.factory(params)
    for size in (1e20, 3e38, 1.0):
        for place, param in enumerate(params):
            param.grad = make_gradient(param, 0, place).clamp(-1, 1) * size
        optimizer.step()


def test_a_parameter_that_was_replaced_by_a_larger_one_is_an_error(case):
    """A kernel that trusted the shape of the first would write beyond the statistics."""
    param = nn.Parameter(torch.randn(8, 8))
    optimizer = case.factory([param])
    run(optimizer, [param], range(1))
    param.data = torch.randn(512, 256)
    with pytest.raises((RuntimeError, ValueError)):
        run(optimizer, [param], range(1, 2))


def test_gradients_are_never_modified(case):
    params = make_parameters() + make_parameters(torch.bfloat16)
    for maximize in (False, True):
        optimizer = case.factory(params, maximize=maximize)
        run(optimizer, params, range(2))
        for place, param in enumerate(params):
            assert torch.equal(param.grad, make_gradient(param, 1, place))


def test_a_sparse_gradient_is_refused_before_anything_changes(case):
    dense, embedding = make_parameters()[3], nn.Embedding(5, 4, sparse=True)
    params = [dense, embedding.weight]
    optimizer = case.factory([("dense", dense), ("table", embedding.weight)])
    before = values(params)
    embedding(torch.tensor([1, 3])).sum().backward()
    dense.grad = make_gradient(dense, 0, 0)
    with pytest.raises(ValueError, match=r"needs dense gradients, given sparse ones for table"):
        optimizer.step()
    assert same(params, before)
    assert not optimizer.state


def test_tensors_without_elements_are_no_trouble(case):
    params = [nn.Parameter(torch.empty(0, 3)), make_parameters()[3]]
    optimizer = case.factory(params)
    run(optimizer, params, range(3))
    assert params[0].shape == (0, 3)
    assert all(torch.isfinite(param).all() for param in params)


def test_maximizing_equals_minimizing_the_negative(case):
    params, twins = make_parameters(), make_parameters()
    up, down = case.factory(params, maximize=True), case.factory(twins)
    for step in range(3):
        for place, (param, twin) in enumerate(zip(params, twins, strict=True)):
            param.grad = make_gradient(param, step, place)
            twin.grad = -param.grad
        up.step()
        down.step()
    assert same(params, twins)


def test_a_closure_is_called_once_with_gradients_enabled_and_its_loss_returned(case):
    param = make_parameters()[3]
    twin = make_parameters()[3]
    optimizer, plain = case.factory([param]), case.factory([twin])
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    loss = optimizer.step(closure)
    twin.square().sum().backward()
    assert plain.step() is None
    assert [loss.item()] == calls
    assert torch.equal(param, twin)


def test_hooks_run_around_a_step(case):
    params = make_parameters()
    optimizer = case.factory(params)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(values(params)))
    optimizer.register_step_post_hook(lambda *_: seen.append(values(params)))
    before = values(params)
    run(optimizer, params, range(1))
    assert same(seen[0], before)
    assert same(seen[1], params)


def test_nothing_is_random_and_nothing_is_printed(case, capsys):
    def draw():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    params = make_parameters()
    optimizer = case.factory(params)
    before = draw()
    run(optimizer, params, range(20))
    assert draw() == before
    assert capsys.readouterr() == ("", "")


def test_a_step_never_waits_for_the_device(case):
    """On the meta device there are no values: whatever needed one, such as `item` or `if tensor`, would raise."""
    for dtype in (torch.float32, torch.bfloat16):
        for lr in (0.01, torch.tensor(0.01, device="meta")):
            params = [nn.Parameter(param.to("meta")) for param in make_parameters(dtype)]
            optimizer = case.factory(params)
            optimizer.param_groups[0]["lr"] = lr
            for _ in range(3):
                for param in params:
                    param.grad = torch.empty_like(param)
                optimizer.step()


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_parameters_do_not_lose_small_updates(case, dtype):
    """Each update is a tenth or less of what the parameter's type can hold beside 1."""
    small, reference = nn.Parameter(torch.ones(8, dtype=dtype)), nn.Parameter(torch.ones(8))
    spacing = torch.finfo(dtype).eps / 2
    options = {**case.no_decay, "lr": spacing / 20}
    optimizer, wide = case.factory([small], **options), case.factory([reference], **options)
    for _ in range(200):
        small.grad, reference.grad = torch.ones_like(small), torch.ones_like(reference)
        optimizer.step()
        wide.step()
    assert (1 - reference).min() > 2 * spacing
    torch.testing.assert_close(small.float(), reference.detach(), rtol=0, atol=spacing)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_parameters_stay_near_the_float32_ones(case, dtype):
    small = make_parameters(dtype)
    wide = [nn.Parameter(param.detach().float()) for param in small]
    optimizer, reference = case.factory(small), case.factory(wide)
    for step in range(50):
        for place, (param, twin) in enumerate(zip(small, wide, strict=True)):
            param.grad = make_gradient(param, step, place)
            twin.grad = param.grad.float()
        optimizer.step()
        reference.step()
    for param, twin in zip(small, wide, strict=True):
        torch.testing.assert_close(param.float(), twin.detach(), rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_the_memory_layout_of_a_parameter_or_a_gradient_does_not_matter(case):
    base = torch.randn(6, 5, 4, 3, generator=torch.Generator().manual_seed(0))
    layouts = [base.clone(), base.to(memory_format=torch.channels_last), base.permute(3, 2, 1, 0).contiguous()]
    params = [nn.Parameter(layouts[0]), nn.Parameter(layouts[1]), nn.Parameter(layouts[2].permute(3, 2, 1, 0))]
    for param in params:
        optimizer = case.factory([param], **case.other_group)
        for step in range(3):
            param.grad = make_gradient(base, step, 0)
            optimizer.step()
        # the gradient of a sum: one number, seen as a whole tensor
        param.grad = torch.ones(()).expand_as(param)
        optimizer.step()
        for key, value in optimizer.state[param].items():
            if isinstance(value, torch.Tensor) and value.shape == param.shape:
                assert value.stride() == param.stride(), key
    torch.testing.assert_close(params[1].detach(), params[0].detach())
    torch.testing.assert_close(params[2].detach(), params[0].detach())
