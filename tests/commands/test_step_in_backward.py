"""``trainer.step_in_backward=true``: the usual run, and what it does not work with."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision

from asr.run.build import validate_run
from asr.run.trainer import check_in_backward
from tests.configs import composed
from werdict.errors import ConfigError

WITHIN = ("trainer.step_in_backward=true", "trainer.gradient_clip_val=null")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (WITHIN[:1], "gradient_clip_val=null"),
        ((*WITHIN, "trainer.accumulate_grad_batches=2"), "accumulate_grad_batches=1"),
        ((*WITHIN, "trainer.devices=2"), "devices=1"),
        ((*WITHIN, "callbacks.optimizer_health.every=5"), "optimizer_health.every=5"),
        ((*WITHIN, "optimizer=scaled_adam"), "step_in_backward: ScaledAdam"),
        (("trainer.cuda_graphs=true",), "trainer=gpu"),
    ],
)
def test_what_needs_all_gradients_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        validate_run(composed(*words).options)


def test_a_gradient_scaler_is_refused():
    # on a CPU Lightning turns 16-mixed into bf16-mixed
    scaling = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(ConfigError, match="precision=bf16-mixed"):
        check_in_backward(Trainer(accelerator="cpu", devices=1, plugins=[scaling], logger=False))
    validate_run(composed(*WITHIN, "trainer.precision=bf16-mixed").options)


@pytest.mark.parametrize("optimizer", ["eve", "schedule_free_adamw", "t5x_adafactor"])
def test_others_are_built(optimizer):
    validate_run(composed(*WITHIN, f"optimizer={optimizer}").options)
