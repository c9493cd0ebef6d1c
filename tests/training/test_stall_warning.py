"""A stalled run is reported once, with likely causes, and continues."""

from types import SimpleNamespace

import torch

from asr.training.callbacks.progress import StallWarning
from tests.training.tiny import tiny_module
from werdict.scoring import Utterance, score

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
