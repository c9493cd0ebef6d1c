"""What holds for every optimizer: one step at a time."""

from __future__ import annotations

import itertools
import random
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import optim
from optim.testing import CHECKS, run_check
from tests.optim.training import copies, make_gradient, make_parameters, run, run_both, same, step_with

HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("check", CHECKS)
def test_the_contract_of_all_optimizers_holds(case, check):
    if check in case.exceptions:
        pytest.skip(case.exceptions[check])
    run_check(check, case.factory, options=case.other_group)


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
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


def test_dtypes_may_mix_within_a_group(case):
    together = [param for dtype in (torch.float64, torch.float32, *HALF) for param in make_parameters(dtype)]
    apart = copies(together)
    optimizer, alone = case.factory(together), [case.factory([param]) for param in apart]
    for step in range(3):
        run(optimizer, together, [step])
        for other, param, twin in zip(alone, together, apart, strict=True):
            twin.grad = param.grad
            other.step()
    assert same(together, apart)


def test_a_large_matrix_costs_the_stated_bytes_of_state(case):
    param = nn.Parameter(torch.randn(300, 200))
    optimizer = case.factory([param])
    run(optimizer, [param], range(1))
    tensors = [value for value in optimizer.state[param].values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.nbytes for tensor in tensors) / param.numel() == pytest.approx(case.state_bytes)


def test_a_parameter_without_gradient_keeps_no_state(params, case):
    optimizer = case.factory(params)
    for with_gradients in ((), (1, 3)):
        for place in with_gradients:
            params[place].grad = make_gradient(params[place], 0, place)
        assert optimizer.step() is None
        assert [place for place, param in enumerate(params) if param in optimizer.state] == [*with_gradients]


def test_a_parameter_whose_gradients_come_late_does_what_it_would_have_done_at_first(case):
    late, early = make_parameters()[3], make_parameters()[3]
    other = make_parameters()[2]
    optimizer = case.factory([late, other])
    run(optimizer, [other], range(5))
    other.grad = None
    run_both((optimizer, [late]), (case.factory([early]), [early]), range(1))
    assert torch.equal(late, early)


def test_gradients_whose_squares_overflow_end_no_run(params, case):
    """The guard of a run counts updates that are not finite; an exception would end it at the first."""
    optimizer = case.factory(params)
    for size in (1e20, 3e38, 1.0):
        for place, param in enumerate(params):
            param.grad = make_gradient(param, 0, place).clamp(-1, 1) * size
        optimizer.step()


def test_gradients_are_never_modified_by_maximizing_either(case):
    run_check("leaves_inputs", partial(case.factory, maximize=True))


def test_a_sparse_gradient_is_refused_by_name_and_leaves_no_state(case):
    dense, embedding = make_parameters()[3], nn.Embedding(5, 4, sparse=True)
    optimizer = case.factory([("dense", dense), ("table", embedding.weight)])
    embedding(torch.tensor([1, 3])).sum().backward()
    dense.grad = make_gradient(dense, 0, 0)
    with pytest.raises(ValueError, match="table"):
        optimizer.step()
    assert not optimizer.state


def test_maximizing_equals_minimizing_the_negative(case):
    for options in case.option_sets:
        params, twins = make_parameters(), make_parameters()
        up, down = case.factory(params, maximize=True, **options), case.factory(twins, **options)
        for step in range(4):
            run(up, params, [step])
            for param, twin in zip(params, twins, strict=True):
                twin.grad = -param.grad
            down.step()
        assert same(params, twins), options


def test_nothing_is_random_nothing_is_printed_and_no_global_setting_changes(params, case, capsys):
    def surroundings():
        return (
            *(random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
            *(torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()),
            *(torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()),
            *(torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32),
        )

    optimizer = case.factory(params)
    before = surroundings()
    run(optimizer, params, range(20))
    assert surroundings() == before
    assert capsys.readouterr() == ("", "")


def test_a_step_never_waits_for_the_device(case):
    """On the meta device there are no values: whatever needed one, such as `item` or `if tensor`, would raise."""
    rates = ((torch.float32, 0.01), (torch.bfloat16, torch.tensor(0.01, device="meta")))
    for options, (dtype, lr) in itertools.product(case.option_sets, rates):
        params = [nn.Parameter(param.to("meta")) for param in make_parameters(dtype)]
        optimizer = case.factory(params, **options)
        optimizer.param_groups[0]["lr"] = lr
        for _ in range(3):
            step_with(optimizer, params, 1.0)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_parameters_do_not_lose_small_updates(case, dtype):
    """Each update is a tenth or less of what the parameter's type can hold beside 1."""
    small, reference = nn.Parameter(torch.ones(8, dtype=dtype)), nn.Parameter(torch.ones(8))
    spacing = torch.finfo(dtype).eps / 2
    options = {**case.no_decay, "lr": spacing / 20}
    optimizer, wide = case.factory([small], **options), case.factory([reference], **options)
    for _ in range(200):
        step_with(optimizer, [small], 1.0)
        step_with(wide, [reference], 1.0)
    assert (1 - reference).min() > 2 * spacing
    torch.testing.assert_close(small.float(), reference.detach(), rtol=0, atol=spacing)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_parameters_stay_near_the_float32_ones(case, dtype):
    small = make_parameters(dtype)
    wide = [nn.Parameter(param.detach().float()) for param in small]
    run_both((case.factory(small), small), (case.factory(wide), wide), range(50))
    torch.testing.assert_close([param.float() for param in small], wide, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_model_that_is_cast_after_its_first_step_goes_on_or_is_named(params, case, dtype):
    optimizer = case.factory([(f"weight {i}", param) for i, param in enumerate(params)])
    run(optimizer, params, [0])
    for param in params:
        param.grad = None
        param.data = param.data.to(dtype)
    try:
        run(optimizer, params, [1])
    except RuntimeError as error:
        assert re.search(rf"weight \d.* {dtype}", str(error))  # noqa: PT017


def test_lazy_parameters_have_no_shape_before_the_first_forward_pass(case):
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))
    optimizer = case.factory(model.named_parameters())
    model(torch.ones(2, 3))
    before = copies(model.parameters())
    for number in (1.0, 2.0):  # some rules only prepare statistics at first
        model(torch.full((2, 3), number)).square().sum().backward()
        optimizer.step()
    assert not any(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("name", ["AdamW", "Eve", "Muon", "Combined"])
def test_a_compiled_step_does_what_the_step_does(name):
    results = []
    for compiled in (False, True):
        params = [nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4)) for _ in range(2)]
        members = [optim.AdamW([params[0]]), optim.Muon([params[1]])]
        optimizer = optim.Combined(members) if name == "Combined" else getattr(optim, name)(params)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        run(SimpleNamespace(step=step), params, range(3))
        results.append(params)
    assert same(*results)


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
    torch.testing.assert_close([param.cpu() for param in params], twins)
