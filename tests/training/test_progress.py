"""What a run says on the terminal."""

import io
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from asr.training.callbacks.progress import StallWarning, TrainingProgress, describe_groups, describe_time
from asr.training.nonfinite_guard import NonfiniteGuard, UnreadableCuts
from optim import AdamW, Cain, WarmupCosine, grouped, step_in_backward
from werdict.console import console

RULES = [
    {"pattern": "0.weight", "optimizer": partial(Cain, lr=1.5e-3)},
    {"pattern": "bias", "weight_decay": 0.5, "lr_scale": 0.1},
    {"pattern": ".*"},
]
LINES = [
    "Cain: 1 tensors, 12 parameters, lr 0.0015",
    "AdamW: 2 tensors, 6 parameters, lr 0.025, weight_decay 0.5",
    "AdamW: 1 tensors, 8 parameters, lr 0.25, weight_decay 0.01",
]


def test_what_any_part_prints_during_a_run_never_stands_in_the_line_of_the_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console, "_force_terminal", True)
    monkeypatch.setattr(console, "is_interactive", True)
    monkeypatch.setattr(console, "_file", terminal := io.StringIO())
    progress, trainer = TrainingProgress(), trainer_at(0, 1000)
    progress.on_train_start(trainer, None)
    StallWarning()._warn("loss", "stuck", "update 1: flat")
    UnreadableCuts().record(SimpleNamespace(skipped=[("a", "missing audio")]))
    guard = NonfiniteGuard()
    guard.end_update(2, 0, torch.tensor([1.0, 0.0, 0.0, 1.0]))
    guard.sync(UnreadableCuts())
    trainer.global_step = 500
    progress.on_validation_end(trainer, None)
    progress.on_exception(trainer, None)
    printed = terminal.getvalue()
    for text in ("update 1: flat", "left out a: ", "skipped update 2", "update 500/1000"):
        assert f"\r\x1b[2K{text}" in printed


@pytest.mark.parametrize("build", [lambda named, make: make(named), step_in_backward])
def test_groups_are_described_by_their_optimizer_their_size_and_their_own_options(build):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = build(list(model.named_parameters()), grouped(partial(AdamW, lr=0.25), RULES))
    assert describe_groups(optimizer) == LINES
    WarmupCosine(optimizer, max_steps=20, warmup_steps=10)
    assert describe_groups(optimizer) == LINES


def trainer_at(update, max_steps):
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)]
    return SimpleNamespace(
        **{"global_step": update, "max_steps": max_steps, "optimizers": optimizers},
        **{"is_global_zero": True, "callback_metrics": {}, "sanity_checking": False},
    )


def test_a_log_tells_soon_how_long_the_run_will_take_and_is_never_silent_for_more_than_ten_seconds(monkeypatch, capsys):
    progress, clock = TrainingProgress(), [0.0]
    monkeypatch.setattr("asr.training.callbacks.progress.time.monotonic", lambda: clock[0])
    trainer = trainer_at(0, 1000)
    progress.on_train_start(trainer, None)
    for second in range(1, 30):
        clock[0], trainer.global_step = float(second), 2 * second
        progress.on_train_batch_end(trainer, None)
    for second in range(30, 40):
        clock[0] = float(second)
        progress.on_validation_batch_end(trainer, None, None, None, batch_idx=second)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["12/1000", "32/1000", "52/1000", "58/1000"]
    assert lines[1].endswith("  8 min left")
    clock[0], trainer.global_step = 500.0, 1000
    progress.on_validation_end(trainer, None)
    assert "left" not in capsys.readouterr().out
    assert [describe_time(seconds) for seconds in (45, 100, 12_600)] == ["45 s", "2 min", "3.5 h"]
