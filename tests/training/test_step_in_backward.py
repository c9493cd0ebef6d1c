"""Updates within the backward pass: the same run as usual, and what then cannot be done."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

import optim
from asr.training.callbacks.measurements import TrainingCost
from tests.training import runs
from tests.training.runs import run, same, state
from tests.training.test_nonfinite_guard import bad_batch
from tests.training.test_unreadable import unread
from tests.training.tiny import batch_of, tiny_module, trained
from werdict.errors import Diverged

FACTORIES = {
    "torch's AdamW": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "Schedule-Free": partial(optim.ScheduleFreeAdamW, lr=0.01),
}


def usual(factory, named):
    # groups of one tensor: others of its shape would be stacked, and rounded differently
    return factory([{"params": [pair]} for pair in named])


def in_backward(factory, named):
    return optim.step_in_backward(named, partial(usual, factory))


def last(folder: Path):
    return state(folder / "checkpoints" / "last.ckpt")


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_the_run_is_the_usual_one_and_resumes_as_either(tmp_path, monkeypatch, factory):
    def train(folder: str, way, max_steps: int):
        monkeypatch.setattr(runs, "tiny_module", lambda: tiny_module(partial(way, factory)))
        run(tmp_path / folder, max_steps)

    train("usual", usual, 10)
    train("within", in_backward, 10)
    train("there", usual, 5)
    train("there", in_backward, 10)
    train("back", in_backward, 5)
    train("back", usual, 10)
    for folder in ("within", "there", "back"):
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
            assert same(last(tmp_path / folder)[key], last(tmp_path / "usual")[key]), (folder, key)


def module_of(way):
    return tiny_module(partial(way, FACTORIES["torch's AdamW"]))


def test_updates_with_a_bad_loss_or_without_utterances_change_nothing():
    batches = [batch_of(60, 40, seed=0), bad_batch(), unread("a"), batch_of(60, 40, seed=1)]
    (within, _, seen), (after, _, expected) = (trained(batches, module_of(way)) for way in (in_backward, usual))
    assert same(within.recognizer.state_dict(), after.recognizer.state_dict())
    assert within.guard.state_dict() == after.guard.state_dict()
    assert [row["train/skipped_updates"] for row in seen] == [row["train/skipped_updates"] for row in expected]
    for name in ("train/loss", "train/gradient_norm", "train/utterances"):
        assert seen[0][name] == pytest.approx(expected[0][name], rel=1e-6)


def test_gradients_that_are_not_finite_end_the_run():
    module = module_of(in_backward)
    module.recognizer.head.project.bias.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(Diverged, match=r"update 0 .*resume the run from its last"):
        trained([batch_of(60, 40)] * 2, module)


def test_no_share_of_the_optimizer_is_claimed():
    for way, measured in ((in_backward, False), (usual, True)):
        cost = TrainingCost()
        trained([batch_of(60, 40)] * 3, module_of(way), [cost])
        found = cost.read()
        assert (found["optimizer_share"] is not None) == measured
        assert found["optimizer_state_bytes"] > 0
