"""Several optimizers act as one: for schedules, checkpoints, copies and bad gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from optim import Adafactor, AdamW, Combined, Constant, Eve, Muon, grouped, step_in_backward
from tests.optim.training import copies, duplicates, make_parameters, named, run, run_both, same, values


def combined(params, **options):
    make = grouped(
        partial(Eve, lr=0.01, **options),
        [
            {"pattern": "[135]$", "optimizer": partial(Adafactor, lr=0.02, relative_step=False)},
            {"pattern": "0$", "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9)},
            {"pattern": ".*"},
        ],
    )
    return make(named(params))


def test_each_member_does_what_it_would_do_alone():
    params, apart = make_parameters(), make_parameters()
    optimizer = combined(params)
    alone = Adafactor([apart[i] for i in (1, 3, 5)], lr=0.02, relative_step=False)
    others = [torch.optim.SGD([apart[0]], lr=0.1, momentum=0.9), Eve([apart[i] for i in (2, 4)], lr=0.01)]
    for step in range(3):
        run_both((optimizer, params), (alone, apart), [step])
        for one in others:
            one.step()
    assert same(params, apart)


def test_a_schedule_moves_every_members_lr():
    optimizer = combined(make_parameters())
    schedule = Constant(optimizer, warmup_steps=3)
    assert [group["lr"] for group in optimizer.optimizers[0].param_groups] == [0.02 / 4]
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.02 / 2, 0.1 / 2, 0.01 / 2])


@pytest.mark.parametrize(
    "schedule", [partial(OneCycleLR, total_steps=9, max_lr=0.1), partial(CyclicLR, base_lr=0.01, max_lr=0.1)]
)
@pytest.mark.parametrize("wrapped", [lambda params, make: make(params), step_in_backward], ids=["after", "in backward"])
def test_torchs_cycles_of_lr_and_momentum_are_followed_if_all_members_have_the_option(schedule, wrapped):
    others = partial(AdamW, betas=(0.95, 0.99))  # Muon's
    muon = grouped(partial(Muon, lr=0.01), [{"pattern": "[35]$"}, {"pattern": ".*", "optimizer": others}])
    optimizer, alone = wrapped(named(make_parameters()), muon), Muon(make_parameters())
    rates = [schedule(each) for each in (optimizer, alone)]
    for _ in range(3):
        for each in (optimizer, alone, *rates):
            each.step()
    for group in optimizer.param_groups:
        assert all(group[key] == alone.param_groups[0][key] for key in ("lr", "betas"))
    with pytest.raises(ValueError, match="momentum or beta1"):
        schedule(combined(make_parameters()))


def test_a_checkpoint_and_copies_continue_bit_for_bit_and_apart_from_the_original(tmp_path):
    params = make_parameters()
    optimizer = combined(params)
    run(optimizer, params, range(3))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    twins = copies(params)
    twin = combined(twins)
    twin.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    copied = [(twin, twins), *duplicates((optimizer, params))]
    run(optimizer, params, range(3, 6))
    for each, its in copied:
        assert not same(params, its)
        run(each, its, range(3, 6))
        assert same(params, its)
    with pytest.raises(ValueError, match="1 groups, this optimizer has 3"):
        optimizer.load_state_dict(Eve(make_parameters()).state_dict())


def test_one_bad_gradient_stops_all_members():
    params = make_parameters()
    before = values(params)
    optimizer = combined(params, skip_nonfinite=True)
    for place, param in enumerate(params):  # not a parameter of the member that asks for it
        param.grad = torch.full_like(param, 1.0 if place else float("nan"))
    optimizer.step()
    assert same(params, before)
    assert [member.skipped_steps for member in (optimizer.optimizers[0], optimizer.optimizers[2])] == [1, 1]


def test_a_parameter_of_two_members_and_a_late_group_are_refused():
    params = make_parameters()
    with pytest.raises(ValueError, match="more than one parameter group"):
        Combined([Eve(params), Adafactor(params[:1])])
    with pytest.raises(ValueError, match="add the group to one of"):
        combined(params).add_param_group({"params": make_parameters()})
