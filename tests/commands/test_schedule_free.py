"""A run with Schedule-Free on the command line: killed and resumed, as one process and as two, and decoded."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from asr.config.build import plain
from asr.config.dry_run import dry_run
from asr.training.checkpoints.loading import load_checkpoint
from tests.commands.conftest import Workplace
from tests.commands.test_configs import composed
from tests.commands.test_resume import OPTIONS, TWO, data, last, losses, start, wait_for_update
from tests.training.runs import same

FREE = (*OPTIONS, "optimizer=schedule_free_adamw", "schedule=constant", "schedule.warmup_steps=4")


@pytest.fixture(scope="module")
def place(trained, tmp_path_factory) -> Workplace:
    """A workplace with a run of one process, and one of two."""
    place = Workplace(tmp_path_factory.mktemp("schedule-free"))
    for name, more in (("alone", ()), ("ranks", (TWO,))):
        printed = place.run("train", *FREE, *more, f"run_dir={name}", f"data.dir={data(trained)}")
        assert "WARNING" not in printed
    return place


@pytest.mark.parametrize(("whole", "more"), [("alone", ()), ("ranks", (TWO,))], ids=["alone", "two processes"])
def test_a_killed_run_goes_on_bit_for_bit(place, trained, tmp_path, whole, more):
    every = "callbacks.checkpoints.every_n_updates=1"  # in the middle of an epoch, too
    process = start(tmp_path, *FREE, *more, every, "run_dir=killed", f"data.dir={data(trained)}")
    wait_for_update(tmp_path / "killed", 8, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    printed = Workplace(tmp_path).run("train", "resume=killed")
    assert "resuming from update" in printed
    first, second = last(place.folder / whole), last(tmp_path / "killed")
    for key in ("state_dict", "optimizer_states", "averages", "global_step"):
        assert same(first[key], second[key]), key
    assert losses(place.folder / whole) == losses(tmp_path / "killed")


def test_decoding_the_checkpoint_gives_the_error_rate_that_validation_logged(place, trained):
    cuts = next(data(trained).glob("*/*/cuts_dev.jsonl"))
    place.run("evaluate", "run=alone", f"manifest={cuts}", "name=dev", "output_dir=dev")
    logged = [row.split(",") for row in (place.folder / "alone" / "metrics.csv").read_text().splitlines()]
    wer = next(float(value) for step, name, value in logged if (step, name) == ("11", "val/dev/wer"))
    assert f"WER {100 * wer:.2f} %" in (place.folder / "dev" / "dev.wer.txt").read_text()
    assert "average" in place.run("evaluate", "run=alone", "weights=average", "output_dir=average")


def test_the_checkpoint_has_the_weights_for_evaluation_and_the_optimizer_those_for_training(place):
    path = place.folder / "alone" / "checkpoints" / "last.ckpt"
    saved = torch.load(path, weights_only=True)["optimizer_states"][0]
    weights = list(load_checkpoint(path).weights.values())
    for state in saved["state"].values():
        y, z = state["training_point"], state["z"]
        x = y.lerp(z, 1 - 1 / 0.9)
        assert any(x.shape == weight.shape and torch.equal(x, weight) for weight in weights)


def test_a_schedule_that_decays_is_warned_of(capsys):
    for schedule, warned in (("warmup_cosine", True), ("eden", True), ("constant", False)):
        dry_run(plain(composed("optimizer=schedule_free_adamw", f"schedule={schedule}")))
        printed = " ".join(capsys.readouterr().out.split())
        assert ("averages weights instead of decaying the learning rate" in printed) == warned
        assert ("schedule=constant" in printed) == warned
    dry_run(plain(composed("optimizer=adamw")))
    assert "WARNING" not in capsys.readouterr().out


def test_one_of_several_optimizers_is_enough_for_the_warning(capsys):
    config = plain(composed("optimizer=adamw"))
    free = {"_target_": "optim.ScheduleFreeAdamW", "_partial_": True, "lr": 0.01}
    config["parameter_rules"]["rules"] = [{"pattern": "bias", "optimizer": free}, {"pattern": "."}]
    dry_run(config)
    assert "averages weights" in " ".join(capsys.readouterr().out.split())


def test_transcribing_needs_nothing_else(place, trained):
    audio = sorted(Path(trained.folder).glob("data/digits/*/audio/test-*/*.flac"))[0]
    assert str(audio) in place.run("transcribe", "run=alone", f"audio={audio}")
