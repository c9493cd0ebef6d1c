"""What a run says on the terminal."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from asr.training.callbacks.progress import TrainingProgress, describe_groups, describe_time
from optim import AdamW, Cain, WarmupCosine, grouped, step_in_backward
from tests.small_runs import TINY

RULES = [
    {"pattern": "0.weight", "optimizer": partial(Cain, lr=1.5e-3)},
    {"pattern": "bias", "weight_decay": 0.5, "lr_scale": 0.1},
    {"pattern": ".*"},
]
LINES = [
    "Cain: 1 tensors, 12 parameters, lr 0.0015",
    "AdamW: 2 tensors, 6 parameters, lr 0.025, weight_decay 0.5",
    "AdamW: 1 tensors, 8 parameters, lr 0.25, weight_decay 0",
]


@pytest.mark.parametrize("build", [lambda named, make: make(named), step_in_backward])
def test_groups_are_described_by_their_optimizer_their_size_and_their_own_options(build):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = build(list(model.named_parameters()), grouped(partial(AdamW, lr=0.25), RULES))
    assert describe_groups(optimizer) == LINES
    WarmupCosine(optimizer, max_steps=20, warmup_steps=10)
    assert describe_groups(optimizer) == LINES


def test_a_run_says_which_optimizer_has_which_part(small_run, tmp_path):
    ended = small_run.run("train", *TINY, f"run_dir={tmp_path / 'run'}", "optimizer=muon")
    lines = [line for line in ended.printed.splitlines() if " tensors, " in line]
    assert lines == [
        "  AdamW: 16 tensors, 536 parameters, lr 0.0015",
        "  Muon: 6 tensors, 2,212 parameters, lr 0.0015",
    ]


@pytest.mark.parametrize(("seconds", "told"), [(45, "45 s"), (100, "2 min"), (12_600, "3.5 h")])
def test_a_time_is_told_in_the_unit_that_fits(seconds, told):
    assert describe_time(seconds) == told


def trainer_at(update, max_steps):
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)]
    return SimpleNamespace(
        **{"global_step": update, "max_steps": max_steps, "optimizers": optimizers},
        **{"is_global_zero": True, "callback_metrics": {}, "sanity_checking": False},
    )


def test_a_log_tells_soon_how_long_the_run_will_take_and_then_every_half_minute(monkeypatch, capsys):
    progress, clock = TrainingProgress(), [0.0]
    monkeypatch.setattr("asr.training.callbacks.progress.time.monotonic", lambda: clock[0])
    trainer = trainer_at(0, 1000)
    progress.on_train_start(trainer, None)
    for second in range(1, 70):
        clock[0], trainer.global_step = float(second), 2 * second
        progress.on_train_batch_end(trainer, None)
    updates = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert updates == ["12/1000", "74/1000", "136/1000"]


def test_a_log_says_how_much_time_is_left(monkeypatch, capsys):
    progress = TrainingProgress()
    now = iter([100.0, 150.0, 200.0])
    monkeypatch.setattr("asr.training.callbacks.progress.time.monotonic", lambda: next(now))
    trainer = trainer_at(10, 40)
    progress.on_train_start(trainer, None)
    trainer.global_step = 20  # ten updates in 50 s
    progress.on_validation_end(trainer, None)
    trainer.global_step = 40
    progress.on_validation_end(trainer, None)
    middle, end = capsys.readouterr().out.splitlines()
    assert middle.startswith("update 20/40")
    assert middle.endswith("  2 min left")
    assert "left" not in end
