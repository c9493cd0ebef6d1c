"""What holds for every optimizer's hyper-parameters, parameter groups and learning rate."""

from __future__ import annotations

import re

import pytest
import torch

from tests.optim.training import make_gradient, make_parameters, run, same, values


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64], ids=str)
def test_parameters_that_are_no_real_numbers_are_refused(case, dtype):
    param = torch.zeros(3, dtype=dtype)
    with pytest.raises(ValueError, match=f"needs real floating-point parameters, given {dtype}"):
        case.factory([param])


def test_bad_options_are_refused_by_the_constructor_and_in_a_group(case):
    for bad, message in case.bad_options:
        with pytest.raises(ValueError, match=message):
            case.factory(make_parameters(), **bad)
        with pytest.raises(ValueError, match=message):
            case.factory([{"params": make_parameters(), **bad}])


def test_unknown_options_are_refused_with_what_is_allowed(case):
    with pytest.raises(TypeError, match="learning_rate"):
        case.factory(make_parameters(), learning_rate=0.1)
    with pytest.raises(ValueError, match=r"unknown option 'maximise' \(did you mean 'maximize'\?\); allowed are"):
        case.factory([{"params": make_parameters(), "maximise": True}])


def test_a_group_may_have_a_name_for_the_logs(case):
    optimizer = case.factory([{"params": make_parameters(), "name": "encoder"}])
    assert optimizer.param_groups[0]["name"] == "encoder"


def test_a_refused_group_leaves_the_optimizer_as_it_was(case):
    params, more = make_parameters(), make_parameters(seed=1)
    optimizer = case.factory(params)
    with pytest.raises(ValueError, match="unknown option"):
        optimizer.add_param_group({"params": more, "speed": 1})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": more})
    assert len(optimizer.param_groups) == 2


def test_lists_are_as_good_as_tuples_and_become_tuples(case):
    lists = {key: list(value) for key, value in case.other_group.items() if isinstance(value, tuple)}
    for optimizer in (
        case.factory(make_parameters(), **lists),
        case.factory([{"params": make_parameters(), **lists}]),
    ):
        for key, value in lists.items():
            assert optimizer.param_groups[0][key] == tuple(value)


def test_no_parameters_or_a_bare_tensor_are_refused(case):
    with pytest.raises(ValueError, match="empty parameter list"):
        case.factory([])
    with pytest.raises(TypeError, match="iterable"):
        case.factory(make_parameters()[3])


def test_a_generator_and_named_parameters_do_the_same_as_a_list(case):
    results = []
    for make in (lambda p: p, iter, lambda p: [(f"layer.{i}", param) for i, param in enumerate(p)]):
        params = make_parameters()
        run(case.factory(make(params)), params, range(2))
        results.append(params)
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_names_of_parameters_are_kept(case):
    params = make_parameters()
    optimizer = case.factory([(f"layer.{i}", param) for i, param in enumerate(params)])
    names = [f"layer.{i}" for i in range(len(params))]
    assert optimizer.param_groups[0]["param_names"] == names
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == names


def test_groups_with_different_options_act_like_optimizers_of_their_own(case):
    together, apart = make_parameters(), make_parameters()
    optimizer = case.factory([{"params": together[:3]}, {"params": together[3:], **case.other_group}])
    first, second = case.factory(apart[:3]), case.factory(apart[3:], **case.other_group)
    for step in range(3):
        for place, (one, other) in enumerate(zip(together, apart, strict=True)):
            one.grad, other.grad = make_gradient(one, step, place), make_gradient(other, step, place)
        optimizer.step()
        first.step()
        second.step()
    assert same(together, apart)
    plain = make_parameters()
    run(case.factory(plain), plain, range(3))
    assert not torch.equal(plain[3], together[3])


def test_a_group_added_during_training_is_trained(case):
    params, more = make_parameters(), make_parameters(seed=1)
    optimizer = case.factory(params)
    run(optimizer, params, range(2))
    optimizer.add_param_group({"params": more, **case.other_group})
    before = values(more)
    run(optimizer, params + more, range(2, 4))
    assert not any(torch.equal(a, b) for a, b in zip(more, before, strict=True))


def test_lr_zero_moves_nothing(case):
    params = make_parameters()
    before = values(params)
    optimizer = case.factory(params, **case.no_decay)
    optimizer.param_groups[0]["lr"] = 0.0
    run(optimizer, params, range(3))
    assert same(params, before)


def test_a_changed_lr_is_obeyed(case):
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    optimizer, twin = case.factory(params, **case.no_decay), case.factory(twins, **case.no_decay)
    optimizer.param_groups[0]["lr"] *= 3
    run(optimizer, params, range(1))
    run(twin, twins, range(1))
    for start, moved, less in zip(make_parameters(torch.float64), params, twins, strict=True):
        torch.testing.assert_close(moved - start, 3 * (less - start))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_tensor_as_lr_does_what_the_number_does(case, dtype):
    params, twins = make_parameters(dtype), make_parameters(dtype)
    lr = torch.tensor(2.0**-7, dtype=torch.float64)
    optimizer = case.factory(params, lr=lr)
    twin = case.factory(twins, lr=2.0**-7)
    run(optimizer, params, range(2))
    run(twin, twins, range(2))
    assert lr == 2.0**-7
    lr.mul_(2)
    twin.param_groups[0]["lr"] *= 2
    run(optimizer, params, range(2, 4))
    run(twin, twins, range(2, 4))
    for param, expected in zip(params, twins, strict=True):
        torch.testing.assert_close(param, expected)


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_tensor_of_one_element_is_a_lr_of_any_shape(case, shape):
    lr = torch.full(shape, 2.0**-7)
    params, twins = make_parameters(), make_parameters()
    optimizer, twin = case.factory(params, lr=lr), case.factory(twins, lr=2.0**-7)
    run(optimizer, params, range(2))
    lr.mul_(2)
    run(twin, twins, range(2))
    twin.param_groups[0]["lr"] *= 2
    run(optimizer, params, range(2, 4))
    run(twin, twins, range(2, 4))
    for param, expected in zip(params, twins, strict=True):
        torch.testing.assert_close(param, expected)


def test_a_tensor_with_several_elements_is_no_lr(case):
    with pytest.raises(ValueError, match="lr must be a number or a tensor of one element"):
        case.factory(make_parameters(), lr=torch.tensor([0.1, 0.2]))


def test_the_representation_shows_every_option(case):
    optimizer = case.factory(make_parameters())
    for option in optimizer.defaults:
        assert re.search(rf"\b{option}: ", repr(optimizer))
