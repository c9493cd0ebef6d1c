"""Every schedule: closed-form values, state, and life with groups and tensors."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, LinearLR, SequentialLR

from optim import (
    Constant,
    Eden,
    Eden2,
    Eve,
    InterpCosine,
    Noam,
    WarmupCosine,
    WarmupInverseSquareRoot,
    WarmupLinear,
    WarmupStableDecay,
)
from tests.optim.golden.reader import arrays, manifest

MAKERS = (
    lambda o: Eden(o, 20, 2, 5.0),
    lambda o: Eden(o, 20, 2),
    lambda o: WarmupCosine(o, 50, 5, 0.1),
    lambda o: Constant(o, 4),
    lambda o: Eden2(o, 20, 5.0),
    lambda o: Eden2(o, 20, 0),
    lambda o: Noam(o, 16, 5),
    lambda o: WarmupLinear(o, 50, 5, 0.1),
    lambda o: WarmupInverseSquareRoot(o, 5),
    lambda o: WarmupStableDecay(o, 28, 5, 10, 0.1),
    lambda o: InterpCosine(o, 50, 0.5, 0.2, 0.025),
)


def make_optimizer(lr=0.1, second_lr=None):
    groups = [{"params": [nn.Parameter(torch.ones(size))]} for size in (2, 3)]
    optimizer = Eve(groups, lr=lr)
    if second_lr is not None:
        optimizer.param_groups[1]["lr"] = second_lr
    return optimizer


each_schedule = pytest.mark.parametrize("make", MAKERS, ids=lambda make: type(make(make_optimizer())).__name__)


def lrs(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def advance(optimizer, schedule, steps=1):
    for _ in range(steps):
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("row", manifest()["schedules"], ids=lambda row: row["name"])
def test_eden_has_its_references_values(row):
    optimizer = make_optimizer(row["base_lr"])
    schedule = {"Eden": Eden, "Eden2": Eden2}[row["kind"]](optimizer, **row["args"])
    wanted = arrays("schedules")[row["name"]]
    for i, batch in enumerate(row["batches"]):
        schedule.step_batch(batch)
        for j, epoch in enumerate(row["epochs"]):
            schedule.step_epoch(epoch)
            assert lrs(optimizer) == pytest.approx([wanted[i, j]] * 2, rel=1e-12)


LINEAR, STABLE = partial(WarmupLinear, max_steps=100), partial(WarmupStableDecay, max_steps=100)
COSINE, ROOT = partial(WarmupCosine, max_steps=100), WarmupInverseSquareRoot
# a schedule, and its factor after some updates
FACTORS = [
    (partial(COSINE, warmup_steps=10, min_lr_ratio=0.1), {0: 1 / 11, 9: 10 / 11, 10: 1, 55: 0.55, 100: 0.1, 9999: 0.1}),
    (partial(COSINE, warmup_steps=0), {batch: (1 + math.cos(math.pi * batch / 100)) / 2 for batch in range(101)}),
    (partial(WarmupCosine, max_steps=1, warmup_steps=0, min_lr_ratio=1), {0: 1, 1: 1}),
    (partial(Constant), {0: 1, 5: 1}),
    (partial(Constant, warmup_steps=3), {0: 0.25, 1: 0.5, 2: 0.75, 3: 1, 9: 1}),
    (partial(Noam, d_model=4, warmup_steps=100), {0: 0.5 * 100**-1.5, 99: 0.5 * 0.1, 399: 0.5 * 0.05}),
    (partial(Noam, d_model=1, warmup_steps=1), {0: 1, 8: 1 / 3}),
    (partial(LINEAR, warmup_steps=20, min_lr_ratio=0.2), {0: 1 / 21, 19: 20 / 21, 20: 1, 21: 0.99, 60: 0.6, 500: 0.2}),
    (partial(LINEAR, warmup_steps=10), {100: 0}),
    (partial(ROOT, warmup_steps=24), {0: 1 / 25, 24: 1, 99: 0.5}),
    (partial(ROOT, warmup_steps=0), {0: 1, 8: 1 / 3}),
    (
        partial(STABLE, warmup_steps=10, decay_steps=0.2, min_lr_ratio=0.1),
        {4: 5 / 11, 10: 1, 80: 1, 85: 0.1 + 0.9 * 0.5, 100: 0.1, 1000: 0.1},
    ),
    (partial(STABLE, warmup_steps=10, decay_steps=0, min_lr_ratio=0.1), {100: 1, 101: 0.1}),
    (partial(STABLE, warmup_steps=10), {85: 0.5, 100: 0}),
    (partial(InterpCosine, max_steps=100), {50: 0.5, 100: 0, 200: 0}),
    (
        partial(InterpCosine, max_steps=90, linear_scale=0.5, half_cosine_scale=0.25, min_lr_ratio=0.2),
        {0: 1, 60: 0.2 + 0.8 * (0.5 / 3 + 0.25 * 0.5 + 0.25 * 0.25), 90: 0.2},
    ),
    (partial(Eden, lr_batches=3, lr_epochs=1), {4: (25 / 9) ** -0.25}),
    (partial(Eden, lr_batches=3, lr_epochs=1, warmup_batches=4), {0: 0.5}),
    (partial(Eden2, lr_batches=500), {0: 0.5, 250: 1.25**-0.5 * 0.75}),
    (partial(Eden2, lr_batches=0.5, warmup_batches=0), {1: 5**-0.5}),
    (partial(Eden2, lr_batches=500, warmup_batches=10, warmup_start=0), {0: 0}),
]


@pytest.mark.parametrize(("make", "factors"), FACTORS)
def test_schedules_have_their_closed_forms_values(make, factors):
    optimizer = make_optimizer(2.0)
    schedule = make(optimizer)
    for batch, factor in factors.items():
        schedule.step_batch(batch)
        assert lrs(optimizer) == pytest.approx([2.0 * factor] * 2, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        (partial(Eden, lr_batches=0.25, lr_epochs=6, warmup_batches=0.1, max_steps=200), lambda o: Eden(o, 50, 6, 20)),
        (partial(Eden2, lr_batches=0.25, warmup_batches=0.1, max_steps=200), lambda o: Eden2(o, 50, 20)),
        (partial(Constant, warmup_steps=0.1, max_steps=200), lambda o: Constant(o, 20)),
        (partial(ROOT, warmup_steps=0.1, max_steps=200), lambda o: ROOT(o, 20)),
        (partial(WarmupCosine, warmup_steps=0.25, max_steps=200), lambda o: WarmupCosine(o, 200, 50)),
    ],
)
def test_a_warmup_below_one_is_a_share_of_the_training(shares, counts):
    share, count = shares(make_optimizer()), counts(make_optimizer())
    assert [share.factor(b, 2) for b in range(250)] == [count.factor(b, 2) for b in range(250)]
    assert WarmupCosine(make_optimizer(), max_steps=200, warmup_steps=1).warmup_steps == 1


@each_schedule
def test_updates_are_counted_by_step_and_step_batch_from_the_construction_on(make):
    one, other = make_optimizer(), make_optimizer(second_lr=0.3)
    by_step, by_batch = make(one), make(other)
    for batch in range(31):
        assert by_step.batch == by_batch.batch == batch
        factor = by_step.factor(batch, 0)
        assert lrs(one) == by_step.get_last_lr() == pytest.approx([0.1 * factor] * 2)
        assert lrs(other) == pytest.approx([0.1 * factor, 0.3 * factor])
        advance(one, by_step)
        other.step()
        by_batch.step_batch()


def test_epochs_are_counted_or_set_and_change_edens_rate_at_once():
    optimizer = make_optimizer()
    schedule = Eden(optimizer, 100, 2)
    schedule.step_epoch()
    assert (schedule.epoch, lrs(optimizer)[0]) == (1, pytest.approx(0.1 * 1.25**-0.25))
    schedule.step_epoch(4)
    assert (schedule.epoch, schedule.batch) == (4, 0)
    assert lrs(optimizer)[0] == pytest.approx(0.1 * 5**-0.25)


# where a schedule may stand; torch's own multiply the present rate, so that a wrong one would stay wrong
PLACES = {
    "alone": lambda make, o: make(o),
    "first": lambda make, o: SequentialLR(o, [make(o), ExponentialLR(o, 0.5)], [4]),
    "second": lambda make, o: SequentialLR(o, [LinearLR(o, 0.1, total_iters=4), make(o)], [4]),
    "chained": lambda make, o: ChainedScheduler([make(o), ExponentialLR(o, 0.5)], o),
}


@each_schedule
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("order", [1, -1], ids=["schedule first", "optimizer first"])
def test_a_run_resumed_from_any_update_has_the_rates_of_an_uninterrupted_one(make, place, order):
    whole, wanted, saved = make_optimizer(second_lr=0.3), [], []
    schedule = place(make, whole)
    for _ in range(9):
        wanted.append(lrs(whole))
        saved.append(copy.deepcopy((schedule.state_dict(), whole.state_dict())))
        advance(whole, schedule)
    for update, states in enumerate(saved):
        fresh = make_optimizer()
        resumed = place(make, fresh)
        for part, state in list(zip((resumed, fresh), states, strict=True))[::order]:
            part.load_state_dict(state)
        for rates in wanted[update:]:
            assert lrs(fresh) == rates
            assert resumed.get_last_lr() == rates
            advance(fresh, resumed)


@each_schedule
def test_a_state_holds_counts_and_bases_and_loading_it_sets_no_rate(make):
    optimizer = make_optimizer(second_lr=0.3)
    schedule = make(optimizer)
    advance(optimizer, schedule, 12)
    schedule.step_epoch(3)
    counts, fresh = schedule.state_dict(), make_optimizer(second_lr=0.3)
    assert counts == {"base_lrs": [0.1, 0.3], "epoch": 3, "batch": 12}
    resumed, before = make(fresh), lrs(fresh)
    resumed.load_state_dict(counts)
    assert lrs(fresh) == before
    advance(fresh, resumed)
    advance(optimizer, schedule)
    assert lrs(fresh) == lrs(optimizer)
    with pytest.raises(ValueError, match="2 groups, the optimizer has 1"):
        make(Eve([nn.Parameter(torch.ones(2))])).load_state_dict(counts)


@each_schedule
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


@each_schedule
def test_a_tensor_is_filled_in_place_and_stays_a_tensor(make):
    given = torch.tensor(0.1, dtype=torch.float64)
    optimizer = make_optimizer(given)
    schedule = make(optimizer)
    tensors = [group["lr"] for group in optimizer.param_groups]
    advance(optimizer, schedule, 8)
    assert given == 0.1
    assert tensors[0] is not tensors[1]
    schedule.load_state_dict(schedule.state_dict())
    for group, tensor in zip(optimizer.param_groups, tensors, strict=True):
        assert group["lr"] is tensor
        assert tensor.item() == pytest.approx(0.1 * schedule.factor(8, 0))
    assert all(isinstance(lr, float) for lr in schedule.get_last_lr())


@each_schedule
def test_torchs_own_optimizers_are_scheduled_too(make):
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], lr=0.1, fused=True)
    schedule = make(optimizer)
    assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    advance(optimizer, schedule, 6)
    assert lrs(optimizer)[0] == pytest.approx(0.1 * schedule.factor(6, 0))


BAD = [
    (partial(Eden, lr_batches=0, lr_epochs=6), "lr_batches must be a number in (0, inf), given 0"),
    (partial(Eden, lr_batches=5000, lr_epochs=-1), "lr_epochs"),
    (partial(Eden, lr_batches=5000, lr_epochs=6, warmup_start=1.5), "warmup_start"),
    (partial(Eden2, lr_batches=0), "lr_batches"),
    (partial(Eden2, lr_batches=5000, warmup_batches=-1), "warmup_batches"),
    (partial(WarmupCosine, max_steps=None, warmup_steps=0), "max_steps"),
    (partial(COSINE, warmup_steps=100), "warmup_steps"),
    (partial(COSINE, warmup_steps=10, min_lr_ratio=1.1), "min_lr_ratio"),
    (partial(Constant, warmup_steps=-1), "warmup_steps"),
    (partial(Noam, d_model=0, warmup_steps=5), "d_model"),
    (partial(Noam, d_model=16, warmup_steps=0), "warmup_steps"),
    (partial(LINEAR, warmup_steps=100), "warmup_steps"),
    (partial(LINEAR, warmup_steps=10, min_lr_ratio=-0.1), "min_lr_ratio"),
    (partial(ROOT, warmup_steps=-1), "warmup_steps"),
    (partial(STABLE, warmup_steps=10, decay_steps=0.2, min_lr_ratio=1.1), "min_lr_ratio"),
    (partial(STABLE, warmup_steps=10, decay_steps=-1), "decay_steps"),
    (partial(STABLE, warmup_steps=0.5, decay_steps=0.5), "warmup_steps and decay_steps"),
    (partial(InterpCosine, max_steps=9, linear_scale=0.6, half_cosine_scale=0.6), "linear_scale and half_cosine_scale"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make(make_optimizer())
    assert str(caught.value).startswith(message)


def test_an_optimizer_without_lr_is_refused():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(ValueError, match="group 0 of SGD"):
        Constant(optimizer)
