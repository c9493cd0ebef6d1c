"""The health of an optimizer is what a computation by hand says, and measuring it changes nothing."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial

import pytest
import torch
from torch import nn

from optim import Adafactor, Eve, chain, grouped
from optim.health import Health
from optim.transforms.clipping.by_rms import ClipByRms
from optim.transforms.learning_rate import LearningRate
from tests.optim.training import make_gradient, make_parameters, run, same, values

NAMES = [f"layer.{i}" for i in range(6)]


def rms(tensors) -> float:
    return torch.cat([x.detach().double().reshape(-1) for x in tensors]).square().mean().sqrt().item()


def one_step(optimizer, params, step: int = 0):
    """Return the numbers of a measured step, and the parameters before and after it."""
    before, health = values(params), Health(optimizer, every=1)
    run(optimizer, params, [step])
    return health.take(), before, values(params)


def by_hand(before, after, grads) -> dict[str, float]:
    changes = [new.double() - old.double() for new, old in zip(after, before, strict=True)]
    return {
        "update_rms": rms(changes),
        "param_rms": rms(before),
        "grad_rms": rms(grads),
        "update_ratio": rms(changes) / rms(before),
        "effective_lr": rms(changes) / rms(grads),
        "largest_update_ratio": max(rms([c]) / rms([old]) for c, old in zip(changes, before, strict=True)),
    }


def of_group(numbers, label) -> dict[str, float]:
    prefix = f"health/{label}/"
    return {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}


def check_numbers(make, dtype) -> None:
    params = make_parameters(dtype)
    optimizer = make([{"params": params[:3]}, {"params": params[3:], "lr": 0.3}])
    run(optimizer, params, range(2))
    numbers, before, after = one_step(optimizer, params, 2)
    assert all(type(value) is float for value in numbers.values())
    for label, part in ((0, slice(0, 3)), (1, slice(3, 6))):
        found = of_group(numbers, label)
        found.pop("clipped_share", None)
        expected = by_hand(before[part], after[part], [param.grad for param in params[part]])
        assert found == pytest.approx(expected, rel=1e-9 if dtype == torch.float64 else 1e-5)


DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor])
def test_the_numbers_of_torchs_optimizers_are_those_of_a_computation_by_hand(optimizer, dtype):
    check_numbers(partial(optimizer, lr=0.01), dtype)


@DTYPES
def test_the_numbers_of_ours_are_those_of_a_computation_by_hand(case, dtype):
    check_numbers(case.factory, dtype)


def test_plain_descent_has_its_lr_as_effective_lr():
    params = make_parameters(torch.float64)
    numbers, _, _ = one_step(
        torch.optim.SGD([{"params": params[:2]}, {"params": params[2:], "lr": 0.7}], lr=0.1), params
    )
    assert [numbers[f"health/{group}/effective_lr"] for group in (0, 1)] == pytest.approx([0.1, 0.7])


def test_the_share_of_limited_parameters_is_that_of_each_group():
    # ten equal ones are stacked, the large one stands alone
    params = [nn.Parameter(torch.ones(4)) for _ in range(10)] + [nn.Parameter(torch.ones(80, 80))]
    for place, param in enumerate(params):
        param.grad = torch.full_like(param, 2.0 if place in (1, 4, 7, 10) else 0.5)
    groups = [{"params": params[:6]}, {"params": params[6:]}, {"params": [nn.Parameter(torch.ones(3))]}]
    optimizer = chain(ClipByRms(1.0), LearningRate(), ClipByRms(0.09, name="last"), lr=0.1)(groups)
    groups[2]["params"][0].grad = torch.full((3,), 0.95)
    health = Health(optimizer, every=1)
    optimizer.step()
    numbers = health.take()
    # limited twice is limited once
    shares = [numbers[f"health/{group}/clipped_share"] for group in range(3)]
    assert shares == pytest.approx([2 / 6, 2 / 5, 1.0])


def test_adafactors_clipping_is_seen():
    """A gradient of one size is scaled to 1, and a sudden one of 50 by 50/√(0.585 · 1² + 0.415 · 50²) = 1.55."""
    sudden, steady = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8, 8))
    optimizer = Adafactor([sudden, steady], lr=0.1, relative_step=False, clip_threshold=1.5)
    health = Health(optimizer, every=1)
    found = []
    for size in (1.0, 1.0, 50.0):
        before = sudden.detach().clone()
        sudden.grad, steady.grad = torch.full((8, 8), size), torch.ones(8, 8)
        optimizer.step()
        found.append((health.take(), rms([sudden - before]) / rms([before])))
    assert [numbers["health/0/clipped_share"] for numbers, _ in found] == [0.0, 0.0, 0.5]
    assert [ratio for _, ratio in found] == pytest.approx([0.1, 0.1, 0.15])
    assert [numbers["health/0/largest_update_ratio"] for numbers, _ in found] == pytest.approx([0.1, 0.1, 0.15])


def test_without_clipping_there_is_no_share():
    for make in (torch.optim.SGD, Eve):
        params = make_parameters()
        numbers, _, _ = one_step(make(params, lr=0.1), params)
        assert not any("clipped" in name for name in numbers)


def test_the_parameter_that_moved_most_is_named_where_names_are_known():
    params = make_parameters()
    numbers, before, after = one_step(torch.optim.SGD(list(zip(NAMES, params, strict=True)), lr=0.1), params)
    ratios = [rms([new - old]) / rms([old]) for new, old in zip(after, before, strict=True)]
    name = NAMES[ratios.index(max(ratios))]
    assert of_group(numbers, 0)[f"largest/{name}"] == of_group(numbers, 0)["largest_update_ratio"]
    assert sum("/largest/" in name for name in numbers) == 1


def test_groups_go_by_their_names_unless_two_share_one():
    params = make_parameters()

    def labels(*names):
        groups = [{"params": params[i::2], **({"name": name} if name else {})} for i, name in enumerate(names)]
        numbers, _, _ = one_step(torch.optim.SGD(groups, lr=0.1), params)
        return {name.split("/")[1] for name in numbers}

    assert labels("encoder", None) == {"encoder", "1"}
    assert labels("encoder", "encoder") == {"0", "1"}


def test_combined_optimizers_are_measured_together():
    params = make_parameters()
    make = grouped(
        partial(Adafactor, lr=0.02, relative_step=False),
        [{"pattern": "[135]$", "optimizer": partial(torch.optim.SGD, lr=0.1)}, {"pattern": ".*"}],
    )
    optimizer = make(zip(NAMES, params, strict=True))
    numbers, _, _ = one_step(optimizer, params)
    assert of_group(numbers, 0)["effective_lr"] == pytest.approx(0.1)
    assert "clipped_share" not in of_group(numbers, 0)
    assert 0 <= of_group(numbers, 1)["clipped_share"] <= 1
    assert all(member.limited is None for member in optimizer.optimizers if hasattr(member, "limited"))


def test_one_step_in_so_many_is_measured_and_told_once():
    params = make_parameters()
    optimizer = Eve(params, lr=0.1)
    health = Health(optimizer, every=3, num_steps=1)
    told = []
    for step in range(7):
        run(optimizer, params, [step])
        told.append(bool(health.take()))
    assert told == [False, True, False, False, True, False, False]
    assert health.take() == {}


def test_the_gradients_of_a_closure_are_the_ones_that_count():
    param = nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = torch.optim.SGD([param], lr=0.1)
    health = Health(optimizer, every=1)

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert health.take()["health/0/grad_rms"] == pytest.approx(2.0)


def test_a_closure_that_raises_leaves_nothing_behind():
    params = make_parameters()
    optimizer = Adafactor(params, lr=0.1, relative_step=False)
    health = Health(optimizer, every=2)
    run(optimizer, params, [0])

    def closure():
        raise KeyError

    with pytest.raises(KeyError):
        optimizer.step(closure)
    run(optimizer, params, [1])
    assert health.take() == {}
    assert optimizer.limited is None
    run(optimizer, params, [2])
    assert health.take()


def test_measuring_changes_no_bit(case):
    params, twins = make_parameters(), make_parameters()
    measured, plain = case.factory(params), case.factory(twins)
    Health(measured, every=2)
    run(measured, params, range(5))
    run(plain, twins, range(5))
    assert same(params, twins)
    assert str(measured.state_dict()) == str(plain.state_dict())


def test_what_is_not_finite_is_reported_as_it_is():
    params = make_parameters()
    optimizer = torch.optim.SGD([{"params": list(zip(NAMES, params, strict=True))}], lr=0.1)
    health = Health(optimizer, every=1)
    for place, param in enumerate(params):
        param.grad = make_gradient(param, 0, place)
    params[3].grad[2, 2] = math.nan
    optimizer.step()
    numbers = of_group(health.take(), 0)
    assert math.isnan(numbers["update_ratio"])
    assert math.isnan(numbers["largest/layer.3"])
    assert math.isfinite(numbers["param_rms"])


def test_zeros_that_stay_have_a_ratio_of_zero_and_zeros_that_move_an_infinite_one():
    still, moving = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    empty, bare = nn.Parameter(torch.zeros(0)), nn.Parameter(torch.zeros(2))
    still.grad, moving.grad, empty.grad = torch.zeros(3), torch.ones(3), torch.zeros(0)
    optimizer = torch.optim.SGD([{"params": [x]} for x in (still, moving, empty, bare)], lr=0.1)
    health = Health(optimizer, every=1)
    optimizer.step()
    numbers = health.take()
    assert [numbers[f"health/{group}/update_ratio"] for group in range(4)] == [0.0, math.inf, 0.0, 0.0]
    assert [numbers[f"health/{group}/effective_lr"] for group in range(4)] == pytest.approx([0.0, 0.1, 0.0, 0.0])


def test_sparse_gradients_are_measured():
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    health = Health(optimizer, every=1)
    table(torch.tensor([1, 1, 3])).sum().backward()
    optimizer.step()
    assert health.take()["health/0/effective_lr"] == pytest.approx(0.1)


def test_what_is_removed_measures_no_more():
    params = make_parameters()
    optimizer = Adafactor(params, lr=0.1, relative_step=False)
    health = Health(optimizer, every=1)
    run(optimizer, params, [0])
    assert health.take()
    health.remove()
    health.remove()
    run(optimizer, params, [1])
    assert health.take() == {}
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("make", [torch.optim.AdamW, partial(Adafactor, relative_step=False)])
def test_a_copy_of_a_measured_optimizer_steps_alike_and_is_not_measured(make, duplicate):
    params = make_parameters()
    optimizer = make(params, lr=0.01)
    health = Health(optimizer, every=1)
    run(optimizer, params, [0])
    health.take()
    twin = duplicate(optimizer)
    copies = [param for group in twin.param_groups for param in group["params"]]
    run(twin, copies, [1])
    assert health.take() == {}
    run(optimizer, params, [1])
    assert health.take()
    assert same(params, copies)


def test_loaded_state_is_measured_on():
    params = make_parameters()
    optimizer = Adafactor(params, lr=0.1, relative_step=False)
    health = Health(optimizer, every=1)
    run(optimizer, params, [0])
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, [1])
    assert "health/0/clipped_share" in health.take()


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 2.0}, {"every": True}, {"num_steps": -1}], ids=str)
def test_impossible_numbers_are_refused(options):
    optimizer = torch.optim.SGD(make_parameters(), lr=0.1)
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be a number in"):
        Health(optimizer, **options)
    assert not optimizer._optimizer_step_pre_hooks
