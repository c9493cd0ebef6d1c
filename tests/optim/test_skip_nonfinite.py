"""With ``skip_nonfinite`` a bad gradient leaves nothing behind but a count."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from optim import Eve
from tests.optim.cases import CASES
from tests.optim.training import make_gradient, make_parameters, run, same, values

WORLD = 2
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


@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize("place", [0, 2, 5], ids=["in a scalar", "in a vector", "in the last matrix"])
def test_one_bad_element_skips_the_step_for_all_parameters(case, place, value):
    params = make_parameters()
    optimizer = make(case, params)
    run(optimizer, params, range(2))
    before, state = values(params), without_skips(optimizer)
    bad_step(optimizer, params, place, value)
    assert same(before, params)
    assert_equal(without_skips(optimizer), state)
    assert counts(optimizer) == [(2, 1)] * 2
    assert optimizer.skipped_steps == 1


def test_a_bad_first_step_makes_no_state(case):
    params = make_parameters()
    optimizer = make(case, params)
    before = values(params)
    bad_step(optimizer, params, 4, BAD[0])
    assert same(before, params)
    assert optimizer.state_dict()["state"] == {}
    assert optimizer.skipped_steps == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_it_continues_as_if_the_bad_steps_had_never_been(case, dtype):
    params, twins = make_parameters(dtype), make_parameters(dtype)
    optimizer, clean = make(case, params), make(case, twins)
    for step in range(4):
        bad_step(optimizer, params, step, BAD[step % 3])
        run(optimizer, params, [step])
        run(clean, twins, [step])
        assert same(params, twins)
        assert_equal(without_skips(optimizer), without_skips(clean))
    assert (optimizer.skipped_steps, clean.skipped_steps) == (4, 0)
    tensors = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    assert tensors
    assert all(x.isfinite().all() for x in (*tensors, *params))


def test_the_count_survives_saving_and_loading(case, tmp_path: Path):
    params = make_parameters()
    optimizer = make(case, params)
    run(optimizer, params, range(2))
    for value in BAD:
        bad_step(optimizer, params, 3, value)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    twins = [nn.Parameter(value) for value in values(params)]
    loaded = make(case, twins)
    loaded.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    assert loaded.skipped_steps == 3
    for one, its in ((optimizer, params), (loaded, twins)):
        bad_step(one, its, 1, BAD[0])
        run(one, its, [5])
    assert loaded.skipped_steps == copy.deepcopy(loaded).skipped_steps == 4
    assert same(params, twins)


def test_gradients_that_are_large_but_finite_are_no_reason_to_skip(case):
    params = make_parameters()
    optimizer = make(case, params)
    for place, param in enumerate(params):
        # the sum of squares of these is infinite in float32
        param.grad = 1e19 * make_gradient(param, 0, place).sign()
    optimizer.step()
    assert counts(optimizer) == [(1, 0)] * 2


def test_without_it_nothing_is_skipped_or_counted(case):
    params = make_parameters()
    optimizer = case.factory(params)
    run(optimizer, params, range(2))
    assert (optimizer.skip_nonfinite, optimizer.skipped_steps) == (False, 0)


def test_the_loss_of_a_skipped_step_is_returned(case):
    params = make_parameters()
    optimizer = make(case, params)

    def closure():
        loss = sum(param.square().sum() for param in params) * float("nan")
        loss.backward()
        return loss

    assert optimizer.step(closure).isnan()
    assert counts(optimizer) == [(0, 1)] * 2


def test_parameters_without_elements_or_gradients_do_not_matter():
    params = [nn.Parameter(torch.ones(0)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    optimizer = Eve(params, lr=0.1, skip_nonfinite=True)
    optimizer.step()
    params[0].grad = torch.ones(0)
    optimizer.step()
    params[1].grad = torch.ones(2)
    optimizer.step()
    assert counts(optimizer) == [(3, 0)]
    assert not params[1].equal(torch.ones(2))
    params[1].grad[0] = float("nan")
    optimizer.step()
    assert counts(optimizer) == [(3, 1)]


@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_only_true_and_false_are_allowed(case, value):
    with pytest.raises(ValueError, match=f"skip_nonfinite must be True or False, given {value!r}"):
        case.factory(make_parameters(), skip_nonfinite=value)


def _train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    for case in CASES:
        params = make_parameters()
        optimizer = make(case, params)
        for step in range(4):
            # the other rank's gradients are finite, and nobody has averaged them
            bad_step(optimizer, params, 3, BAD[0] if step in (1, 2) and rank == step - 1 else 0.5, step)
        torch.save((values(params), without_skips(optimizer), optimizer.skipped_steps), f"{folder}/{case.name}.{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(_train, args=(str(folder),), nprocs=WORLD)
    return folder


def test_all_ranks_skip_where_one_of_them_has_a_bad_gradient(case, two_ranks):
    params = make_parameters()
    optimizer = make(case, params)
    for step in (0, 3):
        bad_step(optimizer, params, 3, 0.5, step)
    for rank in range(WORLD):
        found, state, num_skipped = torch.load(two_ranks / f"{case.name}.{rank}", weights_only=True)
        assert num_skipped == 2
        assert same(found, params)
        assert_equal(state, without_skips(optimizer))
