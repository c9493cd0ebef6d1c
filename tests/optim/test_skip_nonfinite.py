"""With ``skip_nonfinite`` a bad gradient leaves nothing behind but a count."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from optim import Eve
from tests.optim.training import copies, duplicates, make_gradient, make_parameters, run_both, same, step_with, values

BAD = [float("nan"), float("inf"), float("-inf")]


def make(case, params):
    options = {**case.options, "skip_nonfinite": True}
    return case.optimizer([{"params": params[:3]}, {"params": params[3:], **case.other_group}], **options)


def bad_step(optimizer, params, place: int, value: float, step: int = 2) -> None:
    """Make a step whose gradients are finite but for the last element of one."""
    for i, param in enumerate(params):
        param.grad = make_gradient(param, step, i)
    params[place].grad.view(-1)[-1] = value
    optimizer.step()


def counts(optimizer) -> list[tuple[int, int]]:
    shared = [group["shared_state"] for group in optimizer.param_groups]
    return [(one["steps"], one["skipped_steps"]) for one in shared]


def without_skips(optimizer) -> dict:
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        del group["shared_state"]["skipped_steps"]
    return state


def assert_equal(first, second) -> None:
    """Compare nested state bit for bit."""
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert list(first) == list(second)
        first, second = list(first.values()), list(second.values())
    if isinstance(first, list | tuple):
        for one, other in zip(first, second, strict=True):
            assert_equal(one, other)
    else:
        assert torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_it_continues_as_if_the_bad_steps_had_never_been(case, dtype):
    params, twins = make_parameters(dtype), make_parameters(dtype)
    optimizer, clean = make(case, params), make(case, twins)
    for step in range(4):
        bad_step(optimizer, params, step, BAD[step % 3])
        assert same(params, twins)
        assert_equal(without_skips(optimizer)["state"], without_skips(clean)["state"])
        run_both((optimizer, params), (clean, twins), [step])
        assert same(params, twins)
        assert_equal(without_skips(optimizer), without_skips(clean))
    assert (optimizer.skipped_steps, clean.skipped_steps) == (4, 0)


@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize("place", [0, 2, 5], ids=["in a scalar", "in a vector", "in the last matrix"])
def test_one_bad_element_skips_the_step_for_all_parameters(place, value):
    params = make_parameters()
    optimizer = Eve(params, skip_nonfinite=True)
    before = values(params)
    bad_step(optimizer, params, place, value)
    assert same(before, params)
    assert counts(optimizer) == [(0, 1)]


def test_the_count_survives_saving_loading_and_copying():
    params = make_parameters()
    optimizer = Eve(params, skip_nonfinite=True)
    bad_step(optimizer, params, 3, BAD[0])
    loaded = Eve(copies(params), skip_nonfinite=True)
    loaded.load_state_dict(optimizer.state_dict())
    assert [one.skipped_steps for one in (loaded, *duplicates(optimizer))] == [1, 1, 1]


def test_gradients_that_are_large_but_finite_are_no_reason_to_skip(case):
    params = make_parameters()
    optimizer = make(case, params)
    step_with(optimizer, params, 1e19)  # the sum of the squares of these is infinite in float32
    assert counts(optimizer) == [(1, 0)] * 2


def test_the_loss_of_a_skipped_step_is_returned():
    params = make_parameters()
    optimizer = Eve(params, skip_nonfinite=True)

    def closure():
        loss = sum(param.square().sum() for param in params) * float("nan")
        loss.backward()
        return loss

    assert optimizer.step(closure).isnan()
    assert counts(optimizer) == [(0, 1)]


def test_parameters_without_elements_or_gradients_do_not_matter():
    params = [nn.Parameter(torch.ones(0)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    optimizer = Eve(params, lr=0.1, skip_nonfinite=True)
    optimizer.step()
    step_with(optimizer, params[:1], 1.0)
    step_with(optimizer, params[:2], 1.0)
    assert counts(optimizer) == [(3, 0)]
    assert not params[1].equal(torch.ones(2))


@pytest.mark.parametrize("switch", ["skip_nonfinite", "capturable"])
def test_only_true_and_false_are_allowed(switch):
    with pytest.raises(ValueError, match=switch):
        Eve(make_parameters(), **{switch: 1})
