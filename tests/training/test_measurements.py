"""The cost of a run and the optimizer's health are measured without changing it."""

from __future__ import annotations

import csv
import time
from functools import partial
from types import SimpleNamespace

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from asr.tracking.metrics_csv import MetricsCsv
from asr.training.callbacks import measurements
from asr.training.callbacks.measurements import (
    Durations,
    OptimizerHealth,
    StepClock,
    TrainingCost,
    measured_cost,
    state_bytes,
)
from optim import Eve, grouped
from optim.health import Health
from tests.training import runs
from tests.training.tiny import Metrics, batch_of, batches_loader, tiny_module, tiny_trainer

BATCHES = [batch_of(30, 20, seed=seed) for seed in range(10)]


class Clock(pl.Callback):
    """Seconds that pass only where a test says so: 80 at every micro-batch."""

    def __init__(self) -> None:
        self.now = 0.0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.now += 80


class Slow(torch.optim.Optimizer):
    """Takes 20 seconds for a step, and its closure as long as it takes; every n-th step is ten times as heavy."""

    def __init__(self, params, clock: Clock, period: int = 1000) -> None:
        super().__init__(params, {"lr": 0.01})
        self.clock, self.period, self.num_steps = clock, period, 0

    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        self.num_steps += 1
        self.clock.now += 20 if self.num_steps % self.period else 200
        return loss


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("asr.training.callbacks.measurements.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def train(
    cost: TrainingCost, clock: Clock, max_steps: int = 4, period: int = 1000, **options
) -> tuple[object, list[dict[str, float]]]:
    seen = Metrics()
    trainer = tiny_trainer(max_steps, [clock, cost, seen], **options)
    trainer.fit(tiny_module(lambda named: Slow([p for _, p in named], clock, period)), batches_loader(BATCHES))
    return trainer, seen.seen


def numbers(durations: Durations) -> list[float]:
    return [*vars(durations).values()]


def test_the_optimizer_share_is_that_of_its_step_without_the_backward_pass(clock):
    cost = TrainingCost()
    trainer, seen = train(cost, clock)
    found = measured_cost(trainer)
    assert (numbers(cost.steps), numbers(cost.updates)) == ([4, 80, 1600], [4, 400, 40_000])
    assert found["optimizer_share"] == 0.2
    assert (found["seconds_per_update"], found["training_seconds"]) == (100, 400)
    assert [numbers["train/elapsed_s"] for numbers in seen] == [100, 200, 300, 400]


def test_an_update_has_padding_memory_and_the_share_of_the_peak_that_its_operations_reach(clock, monkeypatch):
    monkeypatch.setattr(measurements, "peak_flops", lambda device: 1e4)
    _, seen = train(TrainingCost(), clock, max_steps=3, accumulate_grad_batches=2, precision="bf16-mixed")
    for numbers in seen[1::2]:
        assert numbers["train/padding"] == pytest.approx(1 / 6)
        assert numbers["train/peak_memory_mb"] > 50
    module, batch = tiny_module(), BATCHES[0]
    with FlopCounterMode(display=False) as counted, torch.autocast("cpu", torch.bfloat16):
        inputs = batch.features, batch.num_frames, batch.tokens, batch.num_tokens
        module.recognizer.losses(*inputs).total.sum().backward()
    assert seen[1]["train/mfu"] == pytest.approx(2 * counted.get_total_flops() / 180 / 1e4)
    assert "train/mfu" not in train(TrainingCost(), clock, max_steps=1)[1][0]


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA T1000", None),
    ],
)
def test_the_peak_of_a_gpu_is_found_by_its_name(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert measurements.peak_flops(torch.device("cuda")) == peak
    assert measurements.peak_flops(torch.device("cpu")) is None


def test_waiting_for_data_is_a_share_of_the_time_of_training(tmp_path, monkeypatch):
    seen, read = Metrics(), runs.Made.__getitem__
    monkeypatch.setattr(runs.Made, "__getitem__", lambda self, seed: (time.sleep(0.05), read(self, seed))[1])
    runs.run(tmp_path, 3, [TrainingCost(), seen], validate_every=None)
    for numbers in seen.seen[1:]:
        seconds = numbers["train/elapsed_s"]
        assert 0.05 < numbers["train/data_wait"] * seconds < seconds


def test_rare_heavy_steps_count(clock):
    cost = TrainingCost()
    trainer, _ = train(cost, clock, max_steps=10, period=5)
    found = measured_cost(trainer)
    assert found["optimizer_step_seconds"] == (8 * 20 + 2 * 200) / 10
    assert found["optimizer_step_sd"] == pytest.approx(np.std([20.0] * 8 + [200.0] * 2, ddof=1))
    assert found["optimizer_share"] == pytest.approx(56 / (80 + 56))


def test_micro_batches_of_an_update_count_together(clock):
    cost = TrainingCost()
    train(cost, clock, max_steps=3, accumulate_grad_batches=2)
    assert (numbers(cost.steps)[:2], numbers(cost.updates)[:2]) == ([3, 60], [3, 540])


def test_seconds_continue_after_a_resumption_and_speed_starts_again(clock):
    first, second = TrainingCost(), TrainingCost()
    train(first, clock)
    second.load_state_dict(first.state_dict())
    _, seen = train(second, clock)
    assert [numbers["train/elapsed_s"] for numbers in seen] == [500, 600, 700, 800]
    # two utterances of 30 frames are 0.6 s of audio
    assert seen[0]["train/audio_s_per_s"] == pytest.approx(0.006)
    assert numbers(second.updates) == [8, 800, 80_000]


def test_state_bytes_are_those_of_all_tensors_but_the_parameters():
    param = torch.nn.Parameter(torch.ones(10, 3))
    optimizer = torch.optim.AdamW([param])
    param.grad = torch.ones(10, 3)
    optimizer.step()
    assert state_bytes(optimizer) == 2 * 30 * 4 + 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="events need a GPU")
def test_on_a_gpu_no_step_waits_and_all_are_timed():
    param, durations = torch.nn.Parameter(torch.ones(2000, 2000, device="cuda")), Durations()
    clock, optimizer = StepClock(durations), torch.optim.AdamW([param], fused=True)
    optimizer.register_step_pre_hook(clock.begin)
    optimizer.register_step_post_hook(clock.end)
    param.grad = torch.ones_like(param)
    torch.cuda._sleep(100_000_000)
    for _ in range(5):
        optimizer.step()
    assert durations.count == 0, "the device was still asleep"
    clock.collect(wait=True)
    assert durations.count == 5
    assert 0 < durations.mean < 0.05


HEALTH_BATCHES = [batch_of(60, 40, seed=seed) for seed in range(8)]


def eve(named) -> torch.optim.Optimizer:
    return grouped(partial(Eve, lr=0.01), [{"pattern": "bias$", "weight_decay": 0.0}, {"pattern": ".*"}])(named)


def train_measuring_health(folder, every, batches=HEALTH_BATCHES, **options):
    folder.mkdir(exist_ok=True)
    module, fit_options = tiny_module(eve), {"ckpt_path": options.pop("ckpt_path", None)}
    accumulate = options.get("accumulate_grad_batches", 1)
    trainer = tiny_trainer(len(batches) // accumulate, [OptimizerHealth(Health, every)], **options)
    trainer.loggers = [MetricsCsv(folder)]
    trainer.fit(module, batches_loader(batches), weights_only=True, **fit_options)
    return module, trainer, rows_of(folder)


def rows_of(folder) -> dict[int, dict[str, float]]:
    rows: dict[int, dict[str, float]] = {}
    if (folder / "metrics.csv").exists():
        with (folder / "metrics.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                rows.setdefault(int(row["step"]), {})[row["name"]] = float(row["value"])
    return rows


def health(rows) -> dict[int, dict[str, float]]:
    found = {step: {k: v for k, v in row.items() if k.startswith("health/")} for step, row in rows.items()}
    return {step: row for step, row in found.items() if row}


def test_one_update_in_so_many_is_logged_beside_its_loss(tmp_path):
    # the loss is logged at every fourth update only: its own rhythm does not matter
    module, trainer, rows = train_measuring_health(tmp_path, 2, log_every_n_steps=4)
    assert list(health(rows)) == [1, 3, 5, 7]
    assert [step for step, row in rows.items() if "train/loss" in row] == [3, 7]
    for row in health(rows).values():
        for group in (0, 1):
            assert 0 < row[f"health/{group}/update_ratio"] < 1
            assert row[f"health/{group}/effective_lr"] > 0
        (largest,) = (name for name in row if name.startswith("health/1/largest/"))
        assert largest.removeprefix("health/1/largest/") in dict(module.recognizer.named_parameters())
    assert not trainer.optimizers[0]._optimizer_step_pre_hooks


def test_a_resumed_training_measures_the_same_updates(tmp_path):
    _, _, whole = train_measuring_health(tmp_path / "whole", 3)
    _, trainer, _ = train_measuring_health(tmp_path / "first", 3, HEALTH_BATCHES[:4])
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert not any("Health" in name for name in checkpoint["callbacks"])
    _, _, rest = train_measuring_health(tmp_path / "rest", 3, HEALTH_BATCHES, ckpt_path=tmp_path / "last.ckpt")
    assert list(health(whole)) == [2, 5]
    assert list(health(rest)) == [5]


def test_cpu_seconds_go_on_from_a_checkpoint_and_are_unknown_after_one_that_does_not_know_them():
    first = TrainingCost()
    first.cpu_s_before += 1000
    state = first.state_dict()
    resumed, unknown = TrainingCost(), TrainingCost()
    resumed.load_state_dict(state)
    assert 1000 <= (resumed.read()["cpu_seconds"] or 0) < 1100
    unknown.load_state_dict({key: value for key, value in state.items() if key != "cpu_seconds"})
    assert unknown.read()["cpu_seconds"] is None
