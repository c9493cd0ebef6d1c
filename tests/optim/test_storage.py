"""Statistics stored in bfloat16: stochastic rounding, and what every optimizer with common options does with them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import optim
from optim.composable import Composable
from optim.engine.batch import ParamBatch, ParamEntry
from optim.engine.storage import rounded
from tests.optim.cases import CASES
from tests.optim.training import make_gradient, make_parameters, run, same, values

ROWS = [pytest.param(case, id=case.name) for case in CASES if issubclass(case.optimizer, Composable)]
BFLOAT16 = {"storage_dtype": "bfloat16"}


def rounded_at(step, value):
    param = nn.Parameter(torch.zeros_like(value))
    entry = ParamEntry(param, value, {}, None, "weight")
    return rounded(value, "m", ParamBatch(param, value, {}, {"seed": 0}, step, param.shape, entries=[entry]))


def test_rounding_goes_to_a_neighbor_and_is_right_on_average():
    value = torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.linspace(-30, 30, 2000)
    draws = torch.stack([rounded_at(step, value).double() for step in range(400)])
    spacing = torch.finfo(torch.bfloat16).eps * value.double().abs()
    assert ((draws - value).abs() <= spacing).all()
    errors = (draws.mean(0) - value) / spacing
    assert errors.abs().max() < 5 * 0.5 / 400**0.5
    assert abs(errors.mean().item()) < 5 * 0.5 / (400 * 2000) ** 0.5


def test_what_bfloat16_can_hold_is_not_changed():
    nan = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    exact = torch.tensor([0.0, -0.0, 1.0, -2.5, 2.0**-126, float("inf"), -float("inf")])
    assert torch.equal(rounded_at(1, exact).float(), exact)
    assert rounded_at(1, nan).isnan().all()


@pytest.mark.parametrize("row", ROWS)
def test_state_of_the_parameters_shape_takes_half_of_the_bytes(row):
    def num_bytes(**options):
        param = nn.Parameter(torch.randn(300, 200))
        optimizer = row.factory([param], **options)
        run(optimizer, [param], range(2))
        exact = {key for transform in optimizer.transforms for key in transform.exact_state}
        state = [x for key, x in optimizer.state[param].items() if isinstance(x, torch.Tensor) and key not in exact]
        assert all(x.dtype == torch.bfloat16 for x in state if options and x.shape == param.shape)
        return sum(x.nbytes for x in state if x.shape == param.shape)

    assert num_bytes(**BFLOAT16) == num_bytes() / 2 > 0


@pytest.mark.parametrize("row", ROWS)
def test_a_stack_rounds_as_each_parameter_would_alone(row):
    params = make_parameters() + make_parameters(seed=1)
    together = [(f"layer.{i}", param) for i, param in enumerate(params)]
    alone = [(name, nn.Parameter(param.detach().clone())) for name, param in together]
    optimizer = row.factory(together, **BFLOAT16)
    run(optimizer, params, range(3))
    for place, (name, param) in enumerate(alone):
        single = row.factory([(name, param)], **BFLOAT16)
        for step in range(3):
            param.grad = make_gradient(param, step, place)
            single.step()
        for key, value in single.state[param].items():
            if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
                torch.testing.assert_close(value, optimizer.state[params[place]][key], rtol=0.02, atol=1e-6)
        torch.testing.assert_close(param, params[place], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("row", ROWS)
def test_training_stays_near_that_with_float32_statistics(row):
    params, twins = make_parameters(), make_parameters()
    run(row.factory(params, **BFLOAT16), params, range(20))
    run(row.factory(twins), twins, range(20))
    for param, twin, start in zip(params, twins, make_parameters(), strict=True):
        assert (param - twin).norm() < 0.2 * (twin - start).norm() + 1e-6


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_rounds_as_the_one_that_went_on(row, dtype):
    params = make_parameters(dtype)
    optimizer = row.factory(params, seed=3, **BFLOAT16)
    run(optimizer, params, range(3))
    twins = [nn.Parameter(value) for value in values(params)]
    twin = row.factory(twins)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, range(3, 6))
    run(twin, twins, range(3, 6))
    assert same(params, twins)
    assert torch.bfloat16 in {value.dtype for value in twin.state[twins[3]].values() if isinstance(value, torch.Tensor)}


def test_small_changes_add_up():
    """The average moves by less than half of bfloat16's spacing per step: rounding to nearest would stop it."""
    param = nn.Parameter(torch.zeros(4096))
    optimizer = optim.AdamW([param], betas=(0.999, 0.9), **BFLOAT16)
    for _ in range(1000):
        param.grad = torch.ones(4096)
        optimizer.step()
    assert optimizer.state[param]["exp_avg"].float().mean().item() == pytest.approx(1 - 0.999**1000, rel=0.01)


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="storage_dtype must be one of float32, bfloat16, given 'int8'"):
        optim.AdamW(make_parameters(), storage_dtype="int8")
    with pytest.raises(ValueError, match=r"seed must be a number in \[0, inf\) of whole numbers, given 0.5"):
        optim.AdamW(make_parameters(), seed=0.5)
