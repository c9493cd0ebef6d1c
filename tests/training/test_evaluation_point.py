"""A recognizer that is evaluated elsewhere than it is trained: validation, checkpoints, averages and resuming."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

import optim
from asr.training.callbacks.averaging import WeightAveraging
from asr.training.callbacks.checkpoint_callback import CheckpointCallback
from asr.training.checkpoints.files import duplicate, update_file
from asr.training.checkpoints.loading import load_checkpoint
from asr.training.evaluation_point import at_evaluation_point
from asr.training.weights import choose_weights
from tests.training import runs
from tests.training.runs import same, state
from tests.training.tiny import tiny_module


def schedule_free(named) -> torch.optim.Optimizer:
    return optim.ScheduleFreeAdamW(list(named), lr=0.02)


def several(named) -> torch.optim.Optimizer:
    rule = {"pattern": "bias", "optimizer": partial(torch.optim.SGD, lr=0.01)}
    return optim.grouped(partial(optim.ScheduleFreeAdamW, lr=0.02), [rule, {"pattern": "."}])(named)


@pytest.fixture(autouse=True, params=[schedule_free, several], ids=["alone", "with another"])
def _optimizer(request, monkeypatch):
    monkeypatch.setattr(runs, "tiny_module", lambda: tiny_module(request.param))


class Seen(pl.Callback):
    """Keeps the weights of every update's gradients, those after it for evaluation, and those of validations."""

    def __init__(self) -> None:
        self.trained: dict[int, dict[str, torch.Tensor]] = {}
        self.evaluation: dict[int, dict[str, torch.Tensor]] = {}
        self.validated: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_batch_start(self, trainer, pl_module, *_):
        self.trained[trainer.global_step] = copy_of(pl_module)

    def on_train_batch_end(self, trainer, pl_module, *_):
        with at_evaluation_point(trainer.optimizers):
            self.evaluation[trainer.global_step] = copy_of(pl_module)

    def on_validation_batch_end(self, trainer, pl_module, *_):
        self.validated[trainer.global_step] = copy_of(pl_module)


def copy_of(module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.recognizer.named_parameters()}


def run(folder: Path, max_steps: int = 10, callbacks=(), **options):
    return runs.run(folder, max_steps, callbacks, **options)


def saving(folder: Path) -> CheckpointCallback:
    return CheckpointCallback(folder, keep_last=99, every_n_updates=1)


def parameters_of(checkpoint, like):
    return {name: checkpoint.weights[name] for name in like}


def test_validations_and_checkpoints_have_the_weights_for_evaluation(tmp_path):
    seen = Seen()
    run(tmp_path, 10, [seen, saving(tmp_path)])
    assert sorted(seen.validated) == [3, 6, 9, 10]
    for update, weights in seen.validated.items():
        assert same(weights, seen.evaluation[update])
    for update, weights in seen.evaluation.items():
        loaded = load_checkpoint(update_file(tmp_path / "checkpoints", update))
        assert same(parameters_of(loaded, weights), weights)
        if 1 < update < 10:  # the first average is of one point
            assert not same(weights, seen.trained[update])


def test_neither_validations_nor_checkpoints_nor_averages_change_the_training(tmp_path):
    plain, watched = Seen(), Seen()
    run(tmp_path / "plain", 8, [plain], validate_every=None)
    run(tmp_path / "watched", 8, [watched, WeightAveraging(), saving(tmp_path / "watched")], validate_every=2)
    assert same(plain.trained, watched.trained)
    assert same(plain.evaluation, watched.evaluation)


def test_averages_are_those_of_the_weights_for_evaluation(tmp_path):
    seen = Seen()
    run(tmp_path, 6, [seen, WeightAveraging(), saving(tmp_path)])
    checkpoint = choose_weights(load_checkpoint(update_file(tmp_path / "checkpoints", 6)), "average", 0)
    for name, value in seen.evaluation[1].items():
        mean = torch.stack([seen.evaluation[update][name].double() for update in range(1, 7)]).mean(0)
        torch.testing.assert_close(checkpoint.weights[name], mean.to(value.dtype), rtol=1.2e-7, atol=1e-12)


@pytest.mark.parametrize("update", [1, 3, 6, 8], ids=lambda update: f"update {update}")
def test_a_run_is_resumed_bit_for_bit(tmp_path, update):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, 10, [WeightAveraging(), saving(whole)])
    (killed / "checkpoints").mkdir(parents=True)
    duplicate(update_file(whole / "checkpoints", update), update_file(killed / "checkpoints", update))
    run(killed, 10, [WeightAveraging()])
    one, other = (state(folder / "checkpoints" / "last.ckpt") for folder in (whole, killed))
    for key in ("state_dict", "optimizer_states", "averages", "lr_schedulers", "global_step"):
        assert same(one[key], other[key]), key
