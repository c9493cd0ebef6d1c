"""What holds for every optimizer's state: saved, loaded, copied, and continued elsewhere."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import optim
from tests.optim.cases import CASES
from tests.optim.training import copies, duplicates, make_parameters, named, run, run_both, same, values

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
ROOT = Path(__file__).parents[2]


def build(case, params, **options):
    """Return an optimizer of two groups; the options are of the second."""
    return case.factory([{"params": params[:9]}, {"params": params[9:], **options}])


def trained(case, steps: int = 3):
    params = [param for dtype in DTYPES for param in make_parameters(dtype)]
    optimizer = build(case, params, **case.other_group)
    run(optimizer, params, range(steps))
    return optimizer, params


def test_a_new_process_continues_bit_for_bit(continued, case):
    _, params = trained(case, steps=7)
    assert same(continued[case.name], params)


@pytest.fixture(scope="module")
def continued(tmp_path_factory) -> dict[str, list[torch.Tensor]]:
    """Parameters by optimizer, after three steps here and four more in a new process."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for case in CASES:
        optimizer, params = trained(case)
        torch.save({"params": values(params), "optimizer": optimizer.state_dict()}, folder / f"{case.name}.pt")
    command = [sys.executable, "-m", "tests.optim.continue_training", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    return {case.name: torch.load(folder / f"{case.name}.done.pt", weights_only=True) for case in CASES}


def test_a_copy_continues_like_the_original_and_apart_from_it(case):
    optimizer, params = trained(case)
    copied = duplicates((optimizer, params))
    run(optimizer, params, range(3, 6))
    for twin, twins in copied:
        assert not same(params, twins)
        run(twin, twins, range(3, 6))
        assert same(params, twins)
        twin.add_param_group({"params": [nn.Parameter(torch.ones(3))]})


def test_the_last_of_several_loads_counts_and_shares_no_memory_with_what_it_came_from(case):
    optimizer, params = trained(case)
    early = copy.deepcopy(optimizer.state_dict())
    run(optimizer, params, range(3, 5))
    twins = copies(params)
    twin = build(case, twins)
    twin.load_state_dict(early)
    twin.load_state_dict(optimizer.state_dict())
    run_both((optimizer, params), (twin, twins), range(5, 7))
    assert same(params, twins)


def test_options_are_loaded_and_statistics_in_the_types_that_they_were_saved_with(case):
    optimizer, params = trained(case)
    optimizer.param_groups[0]["lr"] = 0.123
    twins = copies(params)
    twin = build(case, twins)
    twin.load_state_dict(optimizer.state_dict())
    assert twin.param_groups[0]["lr"] == 0.123
    assert all(twin.param_groups[1][key] == value for key, value in case.other_group.items())
    for param, other in zip(params, twins, strict=True):
        for key, value in optimizer.state[param].items():
            loaded = twin.state[other][key]
            assert type(loaded) is type(value)
            if isinstance(value, torch.Tensor):
                assert (loaded.dtype, loaded.stride()) == (value.dtype, value.stride())
                assert torch.equal(loaded, value)


def test_the_state_of_parameters_that_never_had_a_gradient_may_be_missing(case):
    params, twins = make_parameters(), make_parameters()
    optimizer, twin = case.factory(params), case.factory(twins)
    run_both((optimizer, params[:2]), (twin, twins[:2]), range(2))
    others = copies(params)
    loaded = case.factory(others)
    loaded.load_state_dict(optimizer.state_dict())
    run_both((loaded, others), (twin, twins), range(2, 4))
    assert same(others, twins)


def test_state_that_belongs_elsewhere_is_refused_and_nothing_changes(case):
    optimizer, params = trained(case)
    stranger = torch.optim.SGD([{"params": params[:9]}, {"params": params[9:]}], momentum=0.9)
    stranger.step()
    unknown, bad = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(optimizer.state_dict())
    unknown["param_groups"][1]["maximise"] = False
    bad["param_groups"][0]["lr"] = -1.0
    before = copy.deepcopy(optimizer.state_dict())
    for given, message in ((stranger.state_dict(), case.name), (unknown, "'maximise'"), (bad, "lr must be")):
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(given)
    after = optimizer.state_dict()
    # statistics of a group may be tensors, which == compares element by element
    assert repr(after["param_groups"]) == repr(before["param_groups"])
    assert after["state"].keys() == before["state"].keys()


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(optim.SOAP, {"max_precond_dim": 10}), (optim.LearnedGradient, {"max_full_dim": 10})],
    ids=["SOAP", "LearnedGradient"],
)
def test_options_that_shapes_depend_on_are_loaded_with_the_statistics(optimizer, options):
    params = make_parameters()
    saved = optimizer(params, **options)
    run(saved, params, range(3))
    twins = copies(params)
    twin = optimizer(twins)
    twin.load_state_dict(copy.deepcopy(saved.state_dict()))
    run_both((saved, params), (twin, twins), range(3, 5))
    assert same(params, twins)


def test_the_state_of_parameters_with_other_shapes_or_names_is_refused_by_name(case):
    optimizer, params = case.factory(named(make_parameters())), make_parameters()
    run(optimizer, optimizer.param_groups[0]["params"], range(1))
    params[3] = nn.Parameter(torch.zeros(12, 16))
    for changed in (named(params), [(f"block.{i}", param) for i, param in enumerate(make_parameters())]):
        twin = case.factory(changed)
        with pytest.raises(ValueError, match=r"layer\.[03]"):
            twin.load_state_dict(optimizer.state_dict())
        assert not twin.state


def test_a_schedules_mark_in_the_groups_survives(case):
    optimizer = case.factory(make_parameters())
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10, cycle_momentum=False)
    for has_schedule in (False, True):
        twin = case.factory(make_parameters())
        if has_schedule:
            torch.optim.lr_scheduler.OneCycleLR(twin, max_lr=0.2, total_steps=10, cycle_momentum=False)
        twin.load_state_dict(optimizer.state_dict())
        assert twin.param_groups[0]["max_lr"] == 0.1


def test_state_finds_its_parameter_by_name_in_another_order(case):
    params = make_parameters()
    optimizer = case.factory(named(params))
    run(optimizer, params, range(3))
    twins = copies(params)
    turned = named(twins)[::-1]
    twin = case.factory(turned)
    twin.load_state_dict(optimizer.state_dict())
    assert twin.param_groups[0]["param_names"] == [name for name, _ in turned]
    run_both((optimizer, params), (twin, twins), range(3, 5))
    assert same(params, twins)


@pytest.mark.parametrize("names_saved", [True, False])
def test_a_state_loads_with_or_without_names(case, names_saved):
    params = make_parameters()
    optimizer = case.factory(named(params) if names_saved else params)
    run(optimizer, params, range(2))
    twins = copies(params)
    twin = case.factory(twins if names_saved else named(twins))
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run_both((optimizer, params), (twin, twins), range(2, 4))
    assert same(params, twins)
