"""Statistics stored in bfloat16: stochastic rounding, and what every optimizer with common options does with them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import optim
from optim.engine.group_step import rounded
from optim.engine.param_batch import DRAW_KEY, ParamBatch, ParamEntry
from optim.engine.random import key_of
from tests.optim.cases import each_of_the_family
from tests.optim.training import copies, make_parameters, named, run, run_both, same, step_with

BFLOAT16 = {"storage_dtype": "bfloat16"}


def rounded_at(step, value):
    param = nn.Parameter(torch.zeros_like(value))
    entry = ParamEntry(param, value, {DRAW_KEY: key_of("weight")})
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


@each_of_the_family
def test_state_of_the_parameters_shape_takes_half_of_the_bytes(row):
    def num_bytes(**options):
        param = nn.Parameter(torch.randn(300, 200))
        optimizer = row.factory([param], **options)
        run(optimizer, [param], range(2))
        # z and p0 are parameters, which rounding would move; s belongs to all parameters together
        kept = {key: x for key, x in optimizer.state[param].items() if isinstance(x, torch.Tensor)}
        state = [x for key, x in kept.items() if key not in ("z", "p0", "s")]
        assert all(x.dtype == torch.bfloat16 for x in state if options and x.shape == param.shape)
        return sum(x.nbytes for x in state if x.shape == param.shape)

    assert num_bytes(**BFLOAT16) == num_bytes() / 2 > 0


@each_of_the_family
def test_a_stack_rounds_as_each_parameter_would_alone(row):
    together = named(make_parameters() + make_parameters(seed=1))
    optimizer, params = row.factory(together, **BFLOAT16), [param for _, param in together]
    alone = copies(params)
    singles = [row.factory([(name, param)], **BFLOAT16) for (name, _), param in zip(together, alone, strict=True)]
    for step in range(3):
        run(optimizer, params, [step])
        for single, param, twin in zip(singles, params, alone, strict=True):
            twin.grad = param.grad
            single.step()
    torch.testing.assert_close(alone, params, rtol=1e-4, atol=1e-5)
    for single, param, twin in zip(singles, params, alone, strict=True):
        for key, value in single.state[twin].items():
            if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
                torch.testing.assert_close(value, optimizer.state[param][key], rtol=0.02, atol=1e-6)


@each_of_the_family
def test_training_stays_near_that_with_float32_statistics(row):
    params, twins = make_parameters(), make_parameters()
    run_both((row.factory(params, **BFLOAT16), params), (row.factory(twins), twins), range(20))
    # of all elements together: a tensor of one may be rounded one way several times in a row
    ours, theirs, starts = (nn.utils.parameters_to_vector(each) for each in (params, twins, make_parameters()))
    assert (ours - theirs).norm() < 0.2 * (theirs - starts).norm()


@each_of_the_family
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_rounds_as_the_one_that_went_on(row, dtype):
    params = make_parameters(dtype)
    optimizer = row.factory(params, seed=3, **BFLOAT16)
    run(optimizer, params, range(3))
    twins = copies(params)
    twin = row.factory(twins)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run_both((optimizer, params), (twin, twins), range(3, 6))
    assert same(params, twins)
    assert torch.bfloat16 in {value.dtype for value in twin.state[twins[3]].values() if isinstance(value, torch.Tensor)}


def test_small_changes_add_up():
    """The average moves by less than half of bfloat16's spacing per step: rounding to nearest would stop it."""
    param = nn.Parameter(torch.zeros(4096))
    optimizer = optim.AdamW([param], betas=(0.999, 0.9), **BFLOAT16)
    for _ in range(1000):
        step_with(optimizer, [param], 1.0)
    assert optimizer.state[param]["exp_avg"].float().mean().item() == pytest.approx(1 - 0.999**1000, rel=0.01)
