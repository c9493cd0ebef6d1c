"""What a training costs is measured from outside, and goes on behind a resumption."""

from __future__ import annotations

import time

import pytest
import torch

from asr.training.cost import StepClock, TrainingCost, measured_cost, state_bytes
from tests.training.tiny import Metrics, adamw, batch_of, batches_loader, tiny_module, tiny_trainer

BATCHES = [batch_of(30, 20, seed=seed) for seed in range(8)]


class SlowSgd(torch.optim.SGD):
    """Takes 20 ms for a step, beside its closure."""

    def step(self, closure=None):
        loss = super().step(closure)
        time.sleep(0.02)
        return loss


def train(cost: TrainingCost, max_steps: int = 4, factory=adamw, **options) -> tuple[object, list[dict[str, float]]]:
    seen = Metrics()
    trainer = tiny_trainer(max_steps, [cost, seen], **options)
    trainer.fit(tiny_module(factory), batches_loader(BATCHES))
    return trainer, seen.seen


def test_the_optimizer_share_is_that_of_its_step_without_the_backward_pass():
    def slow(named):
        return SlowSgd([p for _, p in named], lr=0.01)

    cost = TrainingCost(every=1)
    trainer, _ = train(cost, factory=slow)
    found = measured_cost(trainer)
    assert all(0.02 <= step < total for step, total in zip(cost.steps, cost.updates, strict=True))
    assert found["optimizer_share"] < 1
    assert found["seconds_per_update"] > 0.02


def test_a_closure_is_not_part_of_a_step():
    param = torch.nn.Parameter(torch.ones(3))
    optimizer, durations = torch.optim.SGD([param], lr=0.1), []
    clock = StepClock(1, 0, durations)  # type: ignore[arg-type]
    optimizer.register_step_pre_hook(clock.begin)
    optimizer.register_step_post_hook(clock.end)

    def closure():
        time.sleep(0.05)
        param.grad = torch.ones(3)
        return param.sum()

    assert optimizer.step(closure=closure) == 3
    assert 0 < durations[0] < 0.05
    assert param.tolist() == pytest.approx([0.9] * 3)


def test_only_every_nth_step_is_timed_and_every_update():
    cost = TrainingCost(every=3)
    train(cost, max_steps=7)
    assert (len(cost.steps), len(cost.updates)) == (2, 7)


def test_micro_batches_of_an_update_count_together():
    cost = TrainingCost(every=1)
    train(cost, max_steps=3, accumulate_grad_batches=2)
    assert (len(cost.steps), len(cost.updates)) == (3, 3)
    assert sum(cost.updates) == pytest.approx(cost.seconds, rel=0.2)


def test_seconds_go_on_behind_a_resumption_and_speed_begins_again():
    first = TrainingCost(every=1)
    train(first)
    second = TrainingCost(every=1)
    second.load_state_dict({**first.state_dict(), "seconds": 100.0})
    _, seen = train(second)
    assert second.seconds > 100
    assert seen[0]["train/elapsed_s"] > 100
    # two utterances of 30 frames: 0.6 s, which took far less than 100 s
    assert seen[0]["train/audio_s_per_s"] > 0.6
    assert list(second.updates)[:4] == list(first.updates)


def test_state_bytes_are_those_of_all_tensors_but_the_parameters():
    param = torch.nn.Parameter(torch.ones(10, 3))
    optimizer = torch.optim.AdamW([param])
    param.grad = torch.ones(10, 3)
    optimizer.step()
    assert state_bytes(optimizer) == 2 * 30 * 4 + 4


def test_timing_none_is_refused():
    with pytest.raises(ValueError, match="every must be at least 1, given 0"):
        TrainingCost(every=0)
