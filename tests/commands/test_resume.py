"""A killed run is resumed exactly, as one process and as two."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.commands.conftest import TINY, Workplace
from tests.programs import Started, start_anew
from tests.training.runs import same

OPTIONS = (*TINY, "data.batch.max_duration_s=10", "logger=csv")
TWO = "trainer.devices=2"
ACCUMULATED = "trainer.accumulate_grad_batches"
ZAPFORMER = (
    *(word for word in OPTIONS if not word.startswith("encoder.")),
    *("encoder=zapformer_xs", "encoder.input_dim=16", "encoder.encoder_dim=[16,24,16]"),
    *("encoder.num_encoder_layers=[1,1,1]", "encoder.feedforward_multiple=[1,1,1]", "encoder.num_freqs=8"),
    *("augment=alternating_specaugment", "augment.copies=[1,3]", "optimizer=rubik", "schedule=interp_cosine"),
)


def wait_for_update(run_dir: Path, update: int, process: subprocess.Popen[str] | Started) -> None:
    metrics = run_dir / "metrics.csv"
    while not (metrics.exists() and f"\n{update},train/loss" in metrics.read_text()):
        assert process.poll() is None, (run_dir.parent / "log.txt").read_text()
        time.sleep(0.02)


def train_until_killed(run_dir: Path, update: int, *words: str) -> None:
    """Train until an update is logged, and kill all processes."""
    process = start_anew("train", *words, f"run_dir={run_dir.name}", cwd=run_dir.parent)
    wait_for_update(run_dir, update, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last(run_dir: Path) -> dict:
    return torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)


def same_weights(first: dict, second: dict) -> bool:
    weights, others = first["state_dict"], second["state_dict"]
    return weights.keys() == others.keys() and all(torch.equal(weights[key], others[key]) for key in weights)


def losses(run_dir: Path) -> list[str]:
    return [line for line in (run_dir / "metrics.csv").read_text().splitlines() if "train/loss" in line]


@pytest.fixture(scope="module")
def place(trained, tmp_path_factory) -> Workplace:
    """A workplace with a run of one process that accumulates two micro-batches, and one of two processes."""
    place = Workplace(tmp_path_factory.mktemp("resume"))
    place.run("train", *OPTIONS, "run_dir=alone", "trainer.accumulate_grad_batches=2", f"data.dir={data(trained)}")
    place.run("train", *OPTIONS, "run_dir=ranks", TWO, f"data.dir={data(trained)}")
    place.run("train", *ZAPFORMER, "run_dir=zapformer", f"data.dir={data(trained)}")
    return place


def data(trained) -> Path:
    return trained.folder / "data" / "digits"


def test_two_processes_do_what_one_does_that_accumulates(place):
    alone, ranks = (last(place.folder / name) for name in ("alone", "ranks"))
    assert alone["global_step"] == ranks["global_step"] == 12
    for key, value in alone["state_dict"].items():
        torch.testing.assert_close(ranks["state_dict"][key], value, rtol=1e-5, atol=1e-7)
    assert alone["averages"]["num_averaged"] == ranks["averages"]["num_averaged"] == 12
    assert losses(place.folder / "alone") == losses(place.folder / "ranks")
    wer = [(place.folder / name / "decode" / "test.hyp.txt").read_text() for name in ("alone", "ranks")]
    assert wer[0] == wer[1]


@pytest.mark.parametrize(
    ("whole", "options", "update"),
    [
        ("alone", (*OPTIONS, "trainer.accumulate_grad_batches=2"), 8),
        ("ranks", (*OPTIONS, TWO), 7),
        ("zapformer", ZAPFORMER, 8),
    ],
    ids=["alone", "two processes", "a Zapformer, with more and more copies of utterances"],
)
def test_a_killed_run_is_resumed_bit_for_bit(place, trained, tmp_path, whole, options, update):
    train_until_killed(tmp_path / "killed", update, *options, f"data.dir={data(trained)}")
    assert "resuming from update 6" in Workplace(tmp_path).run("train", "resume=killed")
    first, second = last(place.folder / whole), last(tmp_path / "killed")
    assert same_weights(first, second)
    assert same(first["averages"], second["averages"])
    assert first["averages"]["num_averaged"] == 12
    assert first["global_step"] == second["global_step"]
    assert losses(place.folder / whole) == losses(tmp_path / "killed")


def stopped_at_update_6(whole: Path, run_dir: Path) -> None:
    """Copy a run, without what it has done after its first checkpoint, in the middle of an epoch."""
    shutil.copytree(whole, run_dir, symlinks=True)
    folder = run_dir / "checkpoints"
    (folder / "update-000012.ckpt").unlink()
    for link in ("last.ckpt", "best.ckpt"):
        (folder / link).unlink()


@pytest.mark.parametrize(
    ("whole", "words", "accumulated"),
    [("alone", (TWO,), 1), ("ranks", ("trainer.devices=1", "trainer.accumulate_grad_batches=2"), 2)],
    ids=["1 x 2 to 2 x 1", "2 x 1 to 1 x 2"],
)
def test_as_many_micro_batches_continue_in_the_epoch_on_other_processes(place, tmp_path, whole, words, accumulated):
    stopped_at_update_6(place.folder / whole, tmp_path / "run")
    printed = Workplace(tmp_path).run("train", "resume=run", *words)
    assert "next epoch" not in printed
    first, second = last(place.folder / whole), last(tmp_path / "run")
    for key, value in first["state_dict"].items():
        torch.testing.assert_close(second["state_dict"][key], value, rtol=1e-5, atol=1e-7)
    assert losses(place.folder / whole) == losses(tmp_path / "run")
    assert second["werdict"]["config"]["trainer"]["accumulate_grad_batches"] == accumulated
    is_chosen = ACCUMULATED not in "".join(words)
    assert printed.count(f"{ACCUMULATED}={accumulated}") == int(is_chosen)


@pytest.mark.parametrize(
    ("words", "named"),
    [((TWO, f"{ACCUMULATED}=3"), f"{ACCUMULATED}=1 "), (("trainer.devices=3", "optimizer.lr=0.5"), "divides 2 ")],
    ids=["other accumulation", "no divisor"],
)
def test_a_resumption_with_other_updates_is_told_what_would_keep_them(place, tmp_path, words, named):
    stopped_at_update_6(place.folder / "alone", tmp_path / "run")
    assert named in Workplace(tmp_path).run("train", "resume=run", *words, code=2)


def test_another_number_of_processes_resumes_at_the_next_epoch(trained, tmp_path):
    place = Workplace(tmp_path)
    options = (*OPTIONS, "run_dir=run", f"data.dir={data(trained)}", "trainer.max_steps=6")
    place.run("train", *options, "data.prepare.num_train=60")
    printed = place.run("train", "resume=run", TWO, "trainer.max_steps=9", "allow_changes=true")
    assert "resuming from the next epoch" in printed
    epochs = [line for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines() if "train/epoch" in line]
    assert [line.split(",")[2] for line in epochs[5:7]] == ["0.0", "1.0"]
