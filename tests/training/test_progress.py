"""What a run says on the terminal, and that a stalled run is reported once."""

from __future__ import annotations

import io
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn

from asr.run.train import list_matrices
from asr.training.callbacks.progress import StallWarning, TrainingProgress, describe_groups, describe_time
from asr.training.nonfinite_guard import NonfiniteGuard, UnreadableCuts
from optim import AdamW, Cain, Muon, WarmupCosine, grouped, step_in_backward
from tests.training.tiny import batch_of, tiny_module, trained
from werdict.console import console
from werdict.scoring import Utterance, score

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


def test_a_run_lists_which_matrices_it_updates_if_they_are_not_as_stored(tmp_path):
    for blocks in ("none", "auto"):
        module = tiny_module(grouped(partial(Muon, lr=0.01), blocks=blocks))
        trained(
            [batch_of(60, 40)], module, [LambdaCallback(on_train_start=list_matrices)], default_root_dir=str(tmp_path)
        )
        assert (tmp_path / "matrices.txt").exists() == (blocks == "auto")
    (row,) = [x for x in (tmp_path / "matrices.txt").read_text().splitlines() if "query_key_value.weight" in x]
    assert "6 × 6×12" in row
    assert "blocks=3 heads=2 from SelfAttention" in row


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


REFERENCES = ("one two", "three")
GOOD, EMPTY, SAME = REFERENCES, ("", ""), ("a", "a")
TOO_MANY = ("x y z", "u v w")


class Run:
    """A run of which only the numbers exist."""

    def __init__(self, capsys, **options) -> None:
        self.watch, self.capsys, self.module = StallWarning(**options), capsys, tiny_module()
        self.trainer = SimpleNamespace(
            global_step=0, max_steps=1000, is_global_zero=True, sanity_checking=False, callback_metrics={}
        )

    def update(self, *losses: float) -> str:
        for loss in losses:
            self.trainer.global_step += 1
            self.trainer.callback_metrics = {"train/loss": torch.tensor(loss), "train/lr": torch.tensor(0.25)}
            self.watch.on_train_batch_end(self.trainer, self.module, None, None, 0)
        return self.capsys.readouterr().out

    def validate(self, hypotheses, at: int | None = None) -> str:
        self.trainer.global_step = self.trainer.global_step if at is None else at
        spoken = zip(REFERENCES, hypotheses, strict=True)
        self.module.scores = {"dev": score(Utterance(str(i), r, h) for i, (r, h) in enumerate(spoken))}
        self.watch.on_validation_end(self.trainer, self.module)
        return self.capsys.readouterr().out


def test_each_state_is_said_once_and_again_after_it_had_passed(capsys):
    run = Run(capsys, alignment_updates=100, num_validations=9)
    said = run.validate(EMPTY, at=50)
    assert "normal" in said
    assert "optimizer.lr" not in said
    said = run.validate(EMPTY, at=100)
    assert "are empty" in said
    assert "normal" not in said
    assert "optimizer.lr" in said
    assert run.validate(EMPTY) == ""
    assert "all 2 hypotheses of dev are the same, 'a'" in run.validate(SAME)
    assert run.validate(("b", "b")) == ""
    assert run.validate(GOOD) == ""
    assert "the same, 'a'" in run.validate(SAME)


def test_a_wer_of_100_is_said_after_several_validations_in_a_row(capsys):
    run = Run(capsys, num_validations=2, alignment_updates=5000, loss_span_updates=10)
    run.update(5.0)
    assert run.validate(TOO_MANY) == ""
    assert run.validate(GOOD) == ""
    assert run.validate(TOO_MANY) == ""
    said = run.validate(TOO_MANY)
    assert "WER on dev is 200 %" in said
    assert "2 validations in a row, and the loss does not fall" in said
    assert "normal until about update 5000" in said
    assert "optimizer.lr" in said
    assert run.validate(TOO_MANY) == ""
    run.validate(GOOD)
    run.validate(TOO_MANY, at=5000)
    run.update(4.0)
    said = run.validate(TOO_MANY)
    assert "though the loss falls (5.000 to 4.000)" in said
    assert "tokenizer" in said
    assert "normal" not in said


def test_a_loss_that_stands_still_is_said_once(capsys):
    run = Run(capsys, loss_span_updates=20)
    # windows of two updates: noise within them does not count as better
    assert run.update(*[4.0, 2.0] * 10) == ""
    said = run.update(4.0, 2.0)
    assert (
        "update 22: the loss has not improved for 20 updates (mean 3.000, best 3.000 by update 2; lr now 0.25)" in said
    )
    assert run.update(*[3.0] * 60) == ""
    # better, and then the same again; losses of skipped updates are not finite
    run.update(float("nan"))
    assert run.update(*[2.0] * 20) == ""
    assert "best 2.000 by update 8" in run.update(*[2.0] * 4)


def test_the_span_is_a_share_of_the_budget(capsys):
    for max_steps, span in ((1000, 200), (5000, 1000), (100, 200)):
        run = Run(capsys)
        run.trainer.max_steps = max_steps
        said = run.update(*[1.0] * 1300)
        assert f"has not improved for {span} updates" in said


def test_what_was_said_is_known_after_a_resumption(capsys):
    first, second = (Run(capsys, loss_span_updates=10, num_validations=2) for _ in range(2))
    first.update(*[1.0] * 11)
    first.validate(EMPTY)
    second.watch.load_state_dict(first.watch.state_dict())
    second.trainer.global_step = 11
    assert second.update(1.0) == ""
    assert "100 %" in second.validate(EMPTY)
    assert second.validate(EMPTY) == ""
