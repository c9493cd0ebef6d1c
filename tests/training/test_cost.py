"""The cost of a run is measured without changing it, and continues after a resumption."""

from __future__ import annotations

from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch

from asr.training.callbacks.cost import StepClock, TrainingCost, measured_cost, state_bytes
from tests.training.tiny import Metrics, batch_of, batches_loader, tiny_module, tiny_trainer

BATCHES = [batch_of(30, 20, seed=seed) for seed in range(8)]


class Clock(pl.Callback):
    """Seconds that pass only where a test says so: 80 at every micro-batch."""

    def __init__(self) -> None:
        self.now = 0.0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.now += 80


class Slow(torch.optim.Optimizer):
    """Takes 20 seconds for a step, and its closure as long as it takes."""

    def __init__(self, params, clock: Clock) -> None:
        super().__init__(params, {"lr": 0.01})
        self.clock = clock

    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        self.clock.now += 20
        return loss


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("asr.training.callbacks.cost.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def train(cost: TrainingCost, clock: Clock, max_steps: int = 4, **options) -> tuple[object, list[dict[str, float]]]:
    seen = Metrics()
    trainer = tiny_trainer(max_steps, [clock, cost, seen], **options)
    trainer.fit(tiny_module(lambda named: Slow([p for _, p in named], clock)), batches_loader(BATCHES))
    return trainer, seen.seen


def test_the_optimizer_share_is_that_of_its_step_without_the_backward_pass(clock):
    cost = TrainingCost(every=1)
    trainer, seen = train(cost, clock)
    found = measured_cost(trainer)
    assert (list(cost.steps), list(cost.updates)) == ([20] * 4, [100] * 4)
    assert found["optimizer_share"] == 0.2
    assert (found["seconds_per_update"], found["training_seconds"]) == (100, 400)
    assert [numbers["train/elapsed_s"] for numbers in seen] == [100, 200, 300, 400]


def test_a_closure_is_not_part_of_a_step(clock):
    param, durations = torch.nn.Parameter(torch.ones(3)), []
    optimizer = Slow([param], clock)
    step_clock = StepClock(1, 0, durations)  # type: ignore[arg-type]
    optimizer.register_step_pre_hook(step_clock.begin)
    optimizer.register_step_post_hook(step_clock.end)

    def closure():
        clock.now += 1000
        return param.sum()

    assert optimizer.step(closure=closure) == 3
    assert durations == [20]


def test_only_every_nth_step_is_timed_and_every_update(clock):
    cost = TrainingCost(every=3)
    train(cost, clock, max_steps=7)
    assert (len(cost.steps), len(cost.updates)) == (2, 7)


def test_micro_batches_of_an_update_count_together(clock):
    cost = TrainingCost(every=1)
    train(cost, clock, max_steps=3, accumulate_grad_batches=2)
    assert (list(cost.steps), list(cost.updates)) == ([20] * 3, [180] * 3)


def test_seconds_continue_after_a_resumption_and_speed_starts_again(clock):
    first, second = TrainingCost(every=1), TrainingCost(every=1)
    train(first, clock)
    second.load_state_dict(first.state_dict())
    _, seen = train(second, clock)
    assert [numbers["train/elapsed_s"] for numbers in seen] == [500, 600, 700, 800]
    # two utterances of 30 frames are 0.6 s of audio
    assert seen[0]["train/audio_s_per_s"] == pytest.approx(0.006)
    assert list(second.updates) == [100] * 8


def test_state_bytes_are_those_of_all_tensors_but_the_parameters():
    param = torch.nn.Parameter(torch.ones(10, 3))
    optimizer = torch.optim.AdamW([param])
    param.grad = torch.ones(10, 3)
    optimizer.step()
    assert state_bytes(optimizer) == 2 * 30 * 4 + 4


def test_timing_none_is_refused():
    with pytest.raises(ValueError, match="every must be at least 1, given 0"):
        TrainingCost(every=0)
