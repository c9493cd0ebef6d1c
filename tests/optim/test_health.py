"""The health of an optimizer is what a computation by hand says, and measuring it changes nothing."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

import optim
from optim import Adafactor, Eve, chain, grouped
from optim.health import Health
from optim.transforms.clipping import ClipByRms
from optim.transforms.learning_rate import LearningRate
from tests.optim.training import (
    duplicates,
    make_gradient,
    make_parameters,
    named,
    run,
    run_both,
    same,
    step_with,
    values,
)

ADAFACTOR = partial(Adafactor, lr=0.1, relative_step=False)
SGD = partial(torch.optim.SGD, lr=0.1)


def rms(tensors) -> float:
    return torch.cat([x.detach().double().reshape(-1) for x in tensors]).square().mean().sqrt().item()


def measured(optimizer, make_step, *args) -> dict[str, float]:
    """Return the numbers of a step."""
    health = Health(optimizer, every=1)
    make_step(optimizer, *args)
    return health.take()


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
    before = values(params)
    numbers = measured(optimizer, run, params, [2])
    assert all(type(value) is float for value in numbers.values())
    for label, part in ((0, slice(0, 3)), (1, slice(3, 6))):
        found = of_group(numbers, label)
        found.pop("clipped_share", None)
        expected = by_hand(before[part], params[part], [param.grad for param in params[part]])
        assert found == pytest.approx(expected, rel=1e-9 if dtype == torch.float64 else 1e-5)


DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adafactor])
def test_the_numbers_of_torchs_optimizers_are_those_of_a_computation_by_hand(optimizer, dtype):
    check_numbers(partial(optimizer, lr=0.01), dtype)


@DTYPES
def test_the_numbers_of_ours_are_those_of_a_computation_by_hand(case, dtype):
    check_numbers(case.factory, dtype)


def test_measuring_changes_no_bit(params, twins, case):
    measured, plain = case.factory(params), case.factory(twins)
    Health(measured, every=2)
    run_both((measured, params), (plain, twins), range(5))
    assert same(params, twins)
    assert str(measured.state_dict()) == str(plain.state_dict())


def test_the_share_of_limited_parameters_is_that_of_each_group():
    # ten equal ones are stacked, the large one stands alone
    params = [nn.Parameter(torch.ones(4)) for _ in range(10)] + [
        nn.Parameter(torch.ones(80, 80)),
        nn.Parameter(torch.ones(3)),
    ]
    groups = [{"params": params[:6]}, {"params": params[6:11]}, {"params": params[11:]}]
    optimizer = chain(ClipByRms(1.0), LearningRate(), ClipByRms(0.09, name="last"), lr=0.1)(groups)
    sizes = (2.0 if place in (1, 4, 7, 10) else 0.5 for place in range(11))
    numbers = measured(optimizer, step_with, params, *sizes, 0.95)
    # limited twice is limited once
    assert [numbers[f"health/{group}/clipped_share"] for group in range(3)] == pytest.approx([2 / 6, 2 / 5, 1.0])


@pytest.mark.usefixtures("steps_as_on_a_gpu")
def test_a_transform_that_skips_some_shapes_leaves_the_shares_of_the_others_right():
    @optim.transform
    def skip_vectors(update, batch):
        if len(batch.shape) == 1:
            raise optim.SkipUpdate
        return update

    class ClipEachShape(ClipByRms):
        foreach = False

    params = [nn.Parameter(torch.ones(shape)) for shape in [(3, 2), (3, 2), (5,), (5,), (5,), (4, 4)]]
    optimizer = chain(ClipEachShape(1.0), skip_vectors(), ClipByRms(0.5, name="last"), LearningRate(), lr=0.1)(params)
    # of the matrices the second clipping limits one more, and none of the vectors, which it does not see
    numbers = measured(optimizer, step_with, params, 2.0, 0.6, 2.0, 0.6, 0.6, 0.4)
    assert numbers["health/0/clipped_share"] == pytest.approx(3 / 6)


def test_adafactors_clipping_is_seen():
    """A gradient of one size is scaled to 1, and a sudden one of 50 by 50/√(0.585 · 1² + 0.415 · 50²) = 1.55."""
    sudden, steady = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8, 8))
    optimizer = ADAFACTOR([sudden, steady], clip_threshold=1.5)
    health = Health(optimizer, every=1)
    for size, share, ratio in ((1.0, 0.0, 0.1), (1.0, 0.0, 0.1), (50.0, 0.5, 0.15)):
        step_with(optimizer, [sudden, steady], size, 1.0)
        numbers = of_group(health.take(), 0)
        assert (numbers["clipped_share"], numbers["largest_update_ratio"]) == (share, pytest.approx(ratio))


@pytest.mark.parametrize(
    "clipping", [{"gradient_clipping": "rms_norm"}, {"gradient_clipping": "global_norm", "shard_matrix_work": True}]
)
def test_what_named_clippings_limit_is_counted(params, clipping):
    sizes = (2.0 if param.dim() == 2 else 0.5 for param in params)
    numbers = measured(optim.Muon(params, **clipping), step_with, params, *sizes)
    assert numbers["health/0/clipped_share"] == pytest.approx(2 / 6 if len(clipping) == 1 else 1.0)


def test_the_parameter_that_moved_most_is_named_where_names_are_known(params):
    before = values(params)
    numbers = of_group(measured(SGD(named(params)), run, params, [0]), 0)
    ratios = [rms([new - old]) / rms([old]) for new, old in zip(params, before, strict=True)]
    assert numbers[f"largest/layer.{ratios.index(max(ratios))}"] == numbers["largest_update_ratio"]
    assert sum(name.startswith("largest/") for name in numbers) == 1


def test_groups_go_by_their_names_unless_two_share_one():
    def labels(*names):
        params = make_parameters()
        groups = [{"params": params[i::2], **({"name": name} if name else {})} for i, name in enumerate(names)]
        return {name.split("/")[1] for name in measured(SGD(groups), run, params, [0])}

    assert labels("encoder", None) == {"encoder", "1"}
    assert labels("encoder", "encoder") == {"0", "1"}


def test_combined_optimizers_are_measured_together(params):
    make = grouped(ADAFACTOR, [{"pattern": "[135]$", "optimizer": SGD}, {"pattern": ".*"}])
    numbers = measured(make(named(params)), run, params, [0])
    # torch's optimizers clip nothing
    assert of_group(numbers, 0)["effective_lr"] == pytest.approx(0.1)
    assert "clipped_share" not in of_group(numbers, 0)
    assert 0 <= of_group(numbers, 1)["clipped_share"] <= 1


def test_one_step_in_so_many_is_measured_and_reported_once(params):
    optimizer = Eve(params, lr=0.1)
    health = Health(optimizer, every=3, num_steps=1)
    reported = []
    for step in range(7):
        run(optimizer, params, [step])
        reported.append(bool(health.take()))
    assert reported == [False, True, False, False, True, False, False]
    assert health.take() == {}


def test_a_closures_gradients_count_and_one_that_raises_leaves_nothing_behind():
    param = nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = ADAFACTOR([param])
    health = Health(optimizer, every=2)
    run(optimizer, [param], [0])

    def raises():
        raise KeyError

    def closure():
        optimizer.zero_grad()
        loss = (3 * param).sum()
        loss.backward()
        return loss

    with pytest.raises(KeyError):
        optimizer.step(raises)
    run(optimizer, [param], [1])
    assert health.take() == {}
    assert optimizer.limited is None
    optimizer.step(closure)
    assert health.take()["health/0/grad_rms"] == pytest.approx(3.0)


def test_what_is_not_finite_is_reported_as_it_is(params):
    optimizer = SGD([{"params": named(params)}])
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
    optimizer = SGD([{"params": [x]} for x in (still, moving, empty, bare)])
    numbers = measured(optimizer, step_with, (still, moving, empty), 0.0, 1.0, 0.0)
    assert [numbers[f"health/{group}/update_ratio"] for group in range(4)] == [0.0, math.inf, 0.0, 0.0]
    assert [numbers[f"health/{group}/effective_lr"] for group in range(4)] == pytest.approx([0.0, 0.1, 0.0, 0.0])


def test_sparse_gradients_are_measured():
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = SGD(table.parameters())
    health = Health(optimizer, every=1)
    table(torch.tensor([1, 1, 3])).sum().backward()
    optimizer.step()
    assert health.take()["health/0/effective_lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("make", [torch.optim.AdamW, ADAFACTOR])
def test_loaded_state_is_measured_on_copies_are_not_and_nothing_is_once_it_is_removed(params, make):
    optimizer = make(params, lr=0.01)
    health = Health(optimizer, every=1)
    run(optimizer, params, [0])
    assert health.take()
    for twin in duplicates(optimizer):
        run(twin, [param for group in twin.param_groups for param in group["params"]], [1])
        assert health.take() == {}
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, [1])
    assert ("health/0/clipped_share" in health.take()) == (make is ADAFACTOR)
    health.remove()
    run(optimizer, params, [2])
    assert health.take() == {}


@pytest.mark.parametrize("options", [{"every": 0}, {"num_steps": -1}], ids=str)
def test_impossible_numbers_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be a number in"):
        Health(SGD(make_parameters()), **options)
