"""Every schedule: closed-form values, state, and life with groups and tensors."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from optim import (
    Constant,
    Eden,
    Eden2,
    Eve,
    Noam,
    WarmupCosine,
    WarmupInverseSquareRoot,
    WarmupLinear,
    WarmupStableDecay,
)
from tests.optim.golden.reader import arrays, manifest

SCHEDULES = [
    pytest.param(lambda o: Eden(o, 20, 2, 5.0), id="Eden"),
    pytest.param(lambda o: WarmupCosine(o, 50, 5, 0.1), id="WarmupCosine"),
    pytest.param(lambda o: Constant(o, 4), id="Constant"),
    pytest.param(lambda o: Eden2(o, 20, 5.0), id="Eden2"),
    pytest.param(lambda o: Noam(o, 16, 5), id="Noam"),
    pytest.param(lambda o: WarmupLinear(o, 50, 5, 0.1), id="WarmupLinear"),
    pytest.param(lambda o: WarmupInverseSquareRoot(o, 5), id="WarmupInverseSquareRoot"),
    pytest.param(lambda o: WarmupStableDecay(o, 28, 5, 10, 0.1), id="WarmupStableDecay"),
]
EDEN = [pytest.param(case, id=case["name"]) for case in manifest()["schedules"]]
KINDS = {"Eden": Eden, "Eden2": Eden2}


def make_optimizer(lr=0.1):
    return Eve([{"params": [nn.Parameter(torch.ones(2))]}, {"params": [nn.Parameter(torch.ones(3))]}], lr=lr)


def make_optimizer_with_two_rates():
    optimizer = make_optimizer()
    optimizer.param_groups[1]["lr"] = 0.3
    return optimizer


def lrs(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def advance(optimizer, schedule, steps=1):
    for _ in range(steps):
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("row", EDEN)
def test_eden_has_its_references_values(row):
    optimizer = make_optimizer(row["base_lr"])
    schedule = KINDS[row["kind"]](optimizer, **row["args"])
    wanted = arrays("schedules")[row["name"]]
    for i, batch in enumerate(row["batches"]):
        schedule.step_batch(batch)
        for j, epoch in enumerate(row["epochs"]):
            schedule.step_epoch(epoch)
            assert lrs(optimizer) == pytest.approx([wanted[i, j]] * 2, rel=1e-12)


@pytest.mark.parametrize(
    ("batch", "factor"),
    [(0, 1 / 11), (1, 2 / 11), (9, 10 / 11), (10, 1), (55, 0.55), (100, 0.1), (101, 0.1), (10_000, 0.1)],
)
def test_warmup_cosine_has_its_closed_forms_values(batch, factor):
    optimizer = make_optimizer(2.0)
    WarmupCosine(optimizer, max_steps=100, warmup_steps=10, min_lr_ratio=0.1).step_batch(batch)
    assert lrs(optimizer) == pytest.approx([2.0 * factor] * 2, rel=1e-12)


def test_warmup_cosine_follows_a_cosine_and_ends_just_above_its_minimum():
    optimizer = make_optimizer(1.0)
    schedule = WarmupCosine(optimizer, max_steps=100, warmup_steps=0)
    seen = []
    for _ in range(100):
        seen.append(lrs(optimizer)[0])
        advance(optimizer, schedule)
    assert seen == pytest.approx([(1 + math.cos(math.pi * b / 100)) / 2 for b in range(100)])
    assert 0 < seen[-1] < 0.001
    assert lrs(optimizer) == [0.0, 0.0]


@pytest.mark.parametrize(("warmup", "factors"), [(0, [1, 1, 1]), (3, [0.25, 0.5, 0.75, 1, 1, 1])])
def test_constant_warms_up_and_stays(warmup, factors):
    optimizer = make_optimizer(0.4)
    schedule = Constant(optimizer, warmup)
    for factor in factors:
        assert lrs(optimizer) == pytest.approx([0.4 * factor] * 2)
        advance(optimizer, schedule)


@pytest.mark.parametrize("make", SCHEDULES)
def test_the_first_updates_rate_is_set_at_construction(make):
    optimizer = make_optimizer()
    schedule = make(optimizer)
    assert lrs(optimizer) == schedule.get_last_lr()
    assert lrs(optimizer)[0] == pytest.approx(0.1 * schedule.factor(0, 0))


@pytest.mark.parametrize("make", SCHEDULES)
def test_step_and_step_batch_count_updates_alike(make):
    one, other = make_optimizer(), make_optimizer()
    by_step, by_batch = make(one), make(other)
    for batch in range(1, 31):
        advance(one, by_step)
        other.step()
        by_batch.step_batch()
        assert by_step.batch == by_batch.batch == batch
        assert lrs(one) == lrs(other) == by_step.get_last_lr()
        assert lrs(one)[0] == pytest.approx(0.1 * by_step.factor(batch, 0))


def test_epochs_are_counted_or_set_and_change_edens_rate_at_once():
    optimizer = make_optimizer()
    schedule = Eden(optimizer, 100, 2)
    schedule.step_epoch()
    assert (schedule.epoch, lrs(optimizer)[0]) == (1, pytest.approx(0.1 * 1.25**-0.25))
    schedule.step_epoch(4)
    assert (schedule.epoch, schedule.batch) == (4, 0)
    assert lrs(optimizer)[0] == pytest.approx(0.1 * 5**-0.25)


@pytest.mark.parametrize("make", SCHEDULES)
def test_every_group_keeps_its_own_base_rate(make):
    optimizer = make_optimizer_with_two_rates()
    schedule = make(optimizer)
    advance(optimizer, schedule, 7)
    first, second = lrs(optimizer)
    assert second == pytest.approx(3 * first)


@pytest.mark.parametrize("make", SCHEDULES)
def test_saved_state_restores_counts_and_rates(make):
    optimizer = make_optimizer_with_two_rates()
    schedule = make(optimizer)
    advance(optimizer, schedule, 12)
    schedule.step_epoch(3)
    saved = schedule.state_dict()
    assert saved == {"base_lrs": [0.1, 0.3], "epoch": 3, "batch": 12}

    fresh = make_optimizer()
    restored = make(fresh)
    restored.load_state_dict(saved)
    assert lrs(fresh) == lrs(optimizer)
    advance(optimizer, schedule)
    advance(fresh, restored)
    assert lrs(fresh) == lrs(optimizer)


@pytest.mark.parametrize("make", SCHEDULES)
@pytest.mark.parametrize("optimizer_first", [True, False])
def test_a_resumed_run_continues_in_whatever_order_things_are_loaded(make, optimizer_first):
    optimizer = make_optimizer_with_two_rates()
    schedule = make(optimizer)
    advance(optimizer, schedule, 12)
    state, counts = copy.deepcopy(optimizer.state_dict()), schedule.state_dict()

    fresh = make_optimizer_with_two_rates()
    if optimizer_first:
        fresh.load_state_dict(state)
    resumed = make(fresh)
    resumed.load_state_dict(counts)
    if not optimizer_first:
        fresh.load_state_dict(state)
    assert lrs(fresh) == lrs(optimizer)
    advance(optimizer, schedule, 3)
    advance(fresh, resumed, 3)
    assert lrs(fresh) == lrs(optimizer)


def test_state_of_another_number_of_groups_is_refused():
    saved = Constant(make_optimizer()).state_dict()
    other = Constant(Eve([nn.Parameter(torch.ones(2))]))
    with pytest.raises(ValueError, match="saved for 2 groups, the optimizer has 1"):
        other.load_state_dict(saved)


@pytest.mark.parametrize("make", SCHEDULES)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_a_group_added_later_is_scheduled_from_its_own_base_rate(make, as_tensor):
    optimizer = make_optimizer(torch.tensor(0.1) if as_tensor else 0.1)
    schedule = make(optimizer)
    advance(optimizer, schedule, 3)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(4))]})
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(4))], "lr": 0.2})
    advance(optimizer, schedule)
    now = 0.1 * schedule.factor(4, 0)
    assert lrs(optimizer) == pytest.approx([now, now, now, 2 * now])
    assert len(schedule.state_dict()["base_lrs"]) == 4


@pytest.mark.parametrize("make", SCHEDULES)
def test_a_tensor_is_filled_in_place_and_stays_a_tensor(make):
    given = torch.tensor(0.1, dtype=torch.float64)
    optimizer = make_optimizer(given)
    schedule = make(optimizer)
    tensors = [group["lr"] for group in optimizer.param_groups]
    advance(optimizer, schedule, 8)
    assert given == 0.1
    assert tensors[0] is not tensors[1]
    for group, tensor in zip(optimizer.param_groups, tensors, strict=True):
        assert group["lr"] is tensor
        assert tensor.item() == pytest.approx(0.1 * schedule.factor(8, 0))
    schedule.step_batch(11)
    schedule.load_state_dict(schedule.state_dict())
    assert all(group["lr"] is tensor for group, tensor in zip(optimizer.param_groups, tensors, strict=True))
    assert tensors[0].item() == pytest.approx(0.1 * schedule.factor(11, 0))
    assert all(isinstance(lr, float) for lr in schedule.get_last_lr())


@pytest.mark.parametrize("make", SCHEDULES)
def test_torchs_own_optimizers_are_scheduled_too(make):
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], lr=0.1, fused=True)
    schedule = make(optimizer)
    assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    advance(optimizer, schedule, 6)
    assert lrs(optimizer)[0] == pytest.approx(0.1 * schedule.factor(6, 0))


def test_torchs_own_schedules_drive_our_optimizer():
    optimizer = make_optimizer(0.4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=2)
    advance(optimizer, schedule)
    assert lrs(optimizer) == pytest.approx([0.3, 0.3])


BAD = [
    (lambda o: Eden(o, 0, 6), "lr_batches must be a number in (0, inf), given 0"),
    (lambda o: Eden(o, 5000, -1), "lr_epochs must be"),
    (lambda o: Eden(o, 5000, 6, warmup_batches=-1), "warmup_batches must be"),
    (lambda o: Eden(o, 5000, 6, 500, 1.5), "warmup_start must be a number in [0, 1], given 1.5"),
    (lambda o: WarmupCosine(o, -1, 0), "max_steps must be a number in [1, inf), given -1"),
    (lambda o: WarmupCosine(o, 100, 100), "warmup_steps must be less than max_steps, given 100 and 100"),
    (lambda o: WarmupCosine(o, 100, -1), "warmup_steps must be"),
    (lambda o: WarmupCosine(o, 100, 10, 1.1), "min_lr_ratio must be"),
    (lambda o: WarmupCosine(o, 100, 10, -0.1), "min_lr_ratio must be"),
    (lambda o: WarmupCosine(o, 0, 0), "max_steps must be a number in [1, inf), given 0"),
    (lambda o: WarmupCosine(o, None, 10), "max_steps must be a number in [1, inf), given None"),
    (lambda o: Constant(o, -1), "warmup_steps must be"),
    (lambda o: Eden2(o, 0), "lr_batches must be a number in (0, inf), given 0"),
    (lambda o: Eden2(o, 5000, -1), "warmup_batches must be"),
    (lambda o: Eden2(o, 5000, 500, 1.5), "warmup_start must be a number in [0, 1], given 1.5"),
    (lambda o: Eden2(o, 5000, 500, -0.5), "warmup_start must be"),
    (lambda o: Noam(o, 0, 5), "d_model must be"),
    (lambda o: Noam(o, 16, 0), "warmup_steps must be"),
    (lambda o: WarmupLinear(o, 100, 100), "warmup_steps must be less than max_steps"),
    (lambda o: WarmupLinear(o, 0, 0), "max_steps must be a number in [1, inf), given 0"),
    (lambda o: WarmupLinear(o, 100, 10, 1.1), "min_lr_ratio must be"),
    (lambda o: WarmupLinear(o, 100, 10, -0.1), "min_lr_ratio must be"),
    (lambda o: WarmupInverseSquareRoot(o, -1), "warmup_steps must be"),
    (lambda o: WarmupStableDecay(o, 0, 0), "max_steps must be a number in [1, inf), given 0"),
    (lambda o: WarmupStableDecay(o, 100, 10, 0.2, 1.1), "min_lr_ratio must be"),
    (lambda o: WarmupStableDecay(o, 100, -1), "warmup_steps must be"),
    (lambda o: WarmupStableDecay(o, 100, 10, -1), "decay_steps must be"),
    (lambda o: WarmupStableDecay(o, 100, 0.5, 0.5), "warmup_steps and decay_steps must leave something of max_steps"),
    (lambda o: WarmupStableDecay(o, 100, 0, 1.0 + 99), "decay_steps must be less than max_steps"),
    (lambda o: Constant(o).step_batch(-1), "batch counts updates and must be at least 0, given -1"),
    (lambda o: Constant(o).step_epoch(-1), "epoch must be at least 0, given -1"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make(make_optimizer())
    assert str(caught.value).startswith(message)


def test_an_optimizer_without_lr_is_refused():
    class RelativeStep(torch.optim.SGD):
        """Chooses its own step."""

        def __init__(self, params):
            super().__init__(params, lr=1.0)
            self.param_groups[0]["lr"] = None

    with pytest.raises(ValueError, match="sets the lr, but group 0 of RelativeStep has none"):
        Constant(RelativeStep([nn.Parameter(torch.ones(2))]))


def test_a_warmup_of_one_is_one_update():
    assert WarmupCosine(make_optimizer(), max_steps=200, warmup_steps=1).warmup_steps == 1


def test_a_warmup_below_one_is_a_share_of_the_training():
    shares = WarmupCosine(Eve([torch.zeros(1, requires_grad=True)], lr=1.0), max_steps=200, warmup_steps=0.25)
    steps = WarmupCosine(Eve([torch.zeros(1, requires_grad=True)], lr=1.0), max_steps=200, warmup_steps=50)
    assert [shares.factor(b, 0) for b in range(250)] == [steps.factor(b, 0) for b in range(250)]


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        (lambda o: Eden(o, 0.25, 6, 0.1, max_steps=200), lambda o: Eden(o, 50, 6, 20)),
        (lambda o: Eden2(o, 0.25, 0.1, max_steps=200), lambda o: Eden2(o, 50, 20)),
        (lambda o: Constant(o, 0.1, max_steps=200), lambda o: Constant(o, 20)),
        (lambda o: WarmupInverseSquareRoot(o, 0.1, max_steps=200), lambda o: WarmupInverseSquareRoot(o, 20)),
    ],
)
def test_schedules_without_a_horizon_take_shares_of_one_too(shares, counts):
    share, count = shares(make_optimizer()), counts(make_optimizer())
    assert [share.factor(b, 2) for b in range(250)] == [count.factor(b, 2) for b in range(250)]


FACTORS = [
    (lambda o: Noam(o, 4, 100), 0, 0.5 * 100**-1.5),
    (lambda o: Noam(o, 4, 100), 99, 0.5 * 0.1),
    (lambda o: Noam(o, 4, 100), 399, 0.5 * 0.05),
    (lambda o: WarmupLinear(o, 100, 20, 0.2), 0, 1 / 21),
    (lambda o: WarmupLinear(o, 100, 20, 0.2), 19, 20 / 21),
    (lambda o: WarmupLinear(o, 100, 20, 0.2), 20, 1.0),
    (lambda o: WarmupLinear(o, 100, 20, 0.2), 21, 0.99),
    (lambda o: WarmupLinear(o, 100, 20, 0.2), 60, 0.6),
    (lambda o: WarmupLinear(o, 100, 20, 0.2), 500, 0.2),
    (lambda o: WarmupInverseSquareRoot(o, 24), 0, 1 / 25),
    (lambda o: WarmupInverseSquareRoot(o, 24), 24, 1.0),
    (lambda o: WarmupInverseSquareRoot(o, 24), 99, 0.5),
    (lambda o: WarmupStableDecay(o, 100, 10, 0.2, 0.1), 4, 5 / 11),
    (lambda o: WarmupStableDecay(o, 100, 10, 0.2, 0.1), 10, 1.0),
    (lambda o: WarmupStableDecay(o, 100, 10, 0.2, 0.1), 80, 1.0),
    (lambda o: WarmupStableDecay(o, 100, 10, 0.2, 0.1), 85, 0.1 + 0.9 * 0.5),
    (lambda o: WarmupStableDecay(o, 100, 10, 0.2, 0.1), 100, 0.1),
    (lambda o: WarmupStableDecay(o, 100, 10, 0.2, 0.1), 1000, 0.1),
    (lambda o: WarmupStableDecay(o, 100, 10, 0, 0.1), 100, 1.0),
    (lambda o: WarmupStableDecay(o, 100, 10, 0, 0.1), 101, 0.1),
]


FACTORS += [  # with the default options
    (lambda o: Constant(o), 0, 1.0),
    (lambda o: Eden(o, 3, 1), 4, (25 / 9) ** -0.25),
    (lambda o: Eden(o, 3, 1, 4), 0, 0.5),
    (lambda o: Eden2(o, 500), 0, 0.5),
    (lambda o: Eden2(o, 500), 250, 1.25**-0.5 * 0.75),
    (lambda o: WarmupCosine(o, 100, 10), 100, 0.0),
    (lambda o: WarmupLinear(o, 100, 10), 100, 0.0),
    (lambda o: WarmupStableDecay(o, 100, 10), 85, 0.5),
    (lambda o: WarmupStableDecay(o, 100, 10), 100, 0.0),
]


FACTORS += [  # at the ends of what is allowed
    (lambda o: Eden2(o, 0.5, 0), 1, 5**-0.5),
    (lambda o: Eden2(o, 500, 10, 0), 0, 0.0),
    (lambda o: Eden2(o, 500, 10, 1), 0, 1.0),
    (lambda o: Noam(o, 1, 1), 0, 1.0),
    (lambda o: Noam(o, 1, 1), 8, 1 / 3),
    (lambda o: WarmupCosine(o, 1, 0), 0, 1.0),
    (lambda o: WarmupCosine(o, 1, 0, 1), 1, 1.0),
    (lambda o: WarmupLinear(o, 1, 0), 0, 1.0),
    (lambda o: WarmupLinear(o, 1, 0, 1), 1, 1.0),
    (lambda o: WarmupInverseSquareRoot(o, 0), 0, 1.0),
    (lambda o: WarmupInverseSquareRoot(o, 0), 8, 1 / 3),
]


@pytest.mark.parametrize(("make", "batch", "factor"), FACTORS)
def test_schedules_have_their_closed_forms_values(make, batch, factor):
    assert make(make_optimizer()).factor(batch, 0) == pytest.approx(factor, rel=1e-12)
