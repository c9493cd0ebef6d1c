"""A recognizer that is evaluated elsewhere than it is trained: validation, checkpoints, averages and resuming."""

from __future__ import annotations

from functools import partial

import lightning.pytorch as pl
import pytest
import torch

import optim
from asr.training.callbacks.checkpoints import CheckpointCallback, WeightAveraging
from asr.training.checkpoints import choose_weights, load_checkpoint, update_file
from asr.training.optimizer_protocols import in_eval_mode
from tests.training import runs
from tests.training.runs import run, same, state
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
        with in_eval_mode(trainer.optimizers):
            self.evaluation[trainer.global_step] = copy_of(pl_module)

    def on_validation_batch_end(self, trainer, pl_module, *_):
        self.validated[trainer.global_step] = copy_of(pl_module)


def copy_of(module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.recognizer.named_parameters()}


def test_validations_checkpoints_and_averages_have_the_weights_for_evaluation(tmp_path):
    seen = Seen()
    run(tmp_path, 10, [seen, WeightAveraging(), CheckpointCallback(tmp_path, keep_last=99, every_n_updates=1)])
    assert sorted(seen.validated) == [3, 6, 9, 10]
    for update, weights in seen.validated.items():
        assert same(weights, seen.evaluation[update])
    for update, weights in seen.evaluation.items():
        loaded = load_checkpoint(update_file(tmp_path / "checkpoints", update))
        assert same({name: loaded.weights[name] for name in weights}, weights)
        if 1 < update < 10:  # the first average is of one point
            assert not same(weights, seen.trained[update])
    averaged = choose_weights(load_checkpoint(update_file(tmp_path / "checkpoints", 6)), "average", 0)
    for name in seen.evaluation[1]:
        mean = torch.stack([seen.evaluation[update][name].double() for update in range(1, 7)]).mean(0).float()
        torch.testing.assert_close(averaged.weights[name], mean, rtol=1.2e-7, atol=1e-12)


def test_neither_validations_nor_checkpoints_nor_averages_change_the_training(tmp_path):
    plain, watched = Seen(), Seen()
    run(tmp_path / "plain", 8, [plain], validate_every=None)
    run(tmp_path / "watched", 8, [watched, WeightAveraging()], validate_every=2)
    assert same(plain.trained, watched.trained)
    assert same(plain.evaluation, watched.evaluation)


@pytest.mark.parametrize("update", [3, 8], ids=lambda update: f"update {update}")
def test_a_run_is_resumed_bit_for_bit(tmp_path, update):
    run(tmp_path / "whole", 10, [WeightAveraging()])
    for max_steps in (update, 10):
        run(tmp_path / "parts", max_steps, [WeightAveraging()])
    one, other = (state(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("whole", "parts"))
    for key in ("state_dict", "optimizer_states", "averages", "lr_schedulers", "global_step"):
        assert same(one[key], other[key]), key
