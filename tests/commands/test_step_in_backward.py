"""``trainer.step_in_backward=true``: the usual run, and clear words where it cannot work."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision

from asr.config.build import plain
from asr.config.dry_run import dry_run
from asr.config.trainer import check_in_backward
from asr.errors import ConfigError
from tests.commands.conftest import TINY, Workplace
from tests.commands.test_configs import composed
from tests.commands.test_resume import data, last, losses
from tests.training.runs import same

WITHIN = ("trainer.step_in_backward=true", "trainer.gradient_clip_val=null")


def test_the_run_is_the_usual_one_and_may_be_resumed_in_the_usual_way(trained, tmp_path):
    place = Workplace(tmp_path)
    options = (*TINY, "logger=csv", "trainer.gradient_clip_val=null", f"data.dir={data(trained)}")
    place.run("train", *options, "run_dir=usual")
    place.run("train", *options, WITHIN[0], "run_dir=within")
    for key in ("state_dict", "optimizer_states", "global_step"):
        assert same(last(tmp_path / "usual")[key], last(tmp_path / "within")[key]), key
    assert losses(tmp_path / "usual") == losses(tmp_path / "within")
    place.run("train", "resume=within", "trainer.step_in_backward=false")
    assert torch.isfinite(next(iter(last(tmp_path / "within")["state_dict"].values()))).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (WITHIN[:1], r"clips the norm of all gradients: .*add trainer.gradient_clip_val=null"),
        ((*WITHIN, "trainer.accumulate_grad_batches=2"), "add trainer.accumulate_grad_batches=1"),
        ((*WITHIN, "trainer.devices=2"), "averages gradients over the processes: .*devices=1"),
        ((*WITHIN, "callbacks.optimizer_health.every=5"), "optimizer_health.every=5 measures gradients after"),
        (
            (*WITHIN, "optimizer=eve", "+optimizer.skip_nonfinite=true"),
            "step_in_backward: Eve with skip_nonfinite=True",
        ),
        ((*WITHIN, "optimizer=scaled_adam"), "step_in_backward: ScaledAdam .* ClipByMedianNorm .*clipping_scale"),
        (("trainer.step_in_backward=maybe",), "trainer.step_in_backward must be true or false, given 'maybe'"),
    ],
)
def test_what_needs_all_gradients_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        dry_run(plain(composed(*words)))


def test_a_gradient_scaler_is_refused():
    # on a CPU Lightning turns 16-mixed into bf16-mixed
    scaling = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(ConfigError, match=r"scaled gradients overflow: .*precision=bf16-mixed"):
        check_in_backward(Trainer(accelerator="cpu", devices=1, plugins=[scaling], logger=False))
    dry_run(plain(composed(*WITHIN, "trainer.precision=bf16-mixed")))


@pytest.mark.parametrize("optimizer", ["adamw", "eve", "schedule_free_adamw", "t5x_adafactor"])
def test_others_are_built(optimizer):
    dry_run(plain(composed(*WITHIN, f"optimizer={optimizer}")))
