"""What holds for every optimizer's state: saved, loaded, copied, continued elsewhere, and stored in bfloat16."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import optim
from optim.engine.group_step import rounded
from optim.engine.param_batch import DRAW_KEY, ParamBatch, ParamEntry
from optim.engine.random import key_of
from optim.testing import assert_same
from tests.optim.cases import CASES, each_of_the_family
from tests.optim.training import copies, duplicates, make_parameters, named, run, run_both, same, step_with, values

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


def main(folder: Path) -> None:
    """Continue every checkpoint of a folder for four steps, in a process of its own."""
    torch.set_num_threads(1)
    for case in CASES:
        saved = torch.load(folder / f"{case.name}.pt", weights_only=True)
        params = [nn.Parameter(value) for value in saved["params"]]
        optimizer = build(case, params)
        optimizer.load_state_dict(saved["optimizer"])
        run(optimizer, params, range(3, 7))
        torch.save(values(params), folder / f"{case.name}.done.pt")


@pytest.fixture(scope="module")
def continued(tmp_path_factory) -> dict[str, list[torch.Tensor]]:
    """Parameters by optimizer, after three steps here and four more in a new process."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for case in CASES:
        optimizer, params = trained(case)
        torch.save({"params": values(params), "optimizer": optimizer.state_dict()}, folder / f"{case.name}.pt")
    command = [sys.executable, "-m", "tests.optim.test_saved_state", str(folder)]
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


def test_the_last_of_several_loads_counts_with_options_and_types_and_shares_no_memory_with_what_it_came_from(case):
    optimizer, params = trained(case)
    early = copy.deepcopy(optimizer.state_dict())
    run(optimizer, params, range(3, 5))
    twins = copies(params)
    twin = build(case, twins)
    twin.load_state_dict(early)
    twin.load_state_dict(optimizer.state_dict())
    assert_same(optimizer.state_dict(), twin.state_dict(), "state")
    run_both((optimizer, params), (twin, twins), range(5, 7))
    assert same(params, twins)


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
def test_options_that_shapes_depend_on_are_loaded_with_the_statistics(params, optimizer, options):
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


def backwards(params):
    return named(params)[::-1]


@pytest.mark.parametrize(("saved", "loaded"), [(named, backwards), (named, list), (list, named)])
def test_state_finds_its_parameter_by_name_in_another_order_and_by_place_where_names_lack(params, case, saved, loaded):
    optimizer = case.factory(saved(params))
    run(optimizer, params, range(2))
    twins = copies(params)
    twin = case.factory(loaded(twins))
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    if loaded is backwards:
        assert twin.param_groups[0]["param_names"] == [name for name, _ in backwards(twins)]
    run_both((optimizer, params), (twin, twins), range(2, 4))
    assert same(params, twins)


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
def test_training_stays_near_that_with_float32_statistics(params, twins, row):
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
