"""Runs whose model is divided over processes: the curves of whole ones, kills, and resumptions on other processes."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import time
from pathlib import Path

import lightning.pytorch as pl
import pytest
from torch.distributed.checkpoint import FileSystemWriter

from asr.training.checkpoints import load_checkpoint
from tests.commands.test_resume import wait_for_update
from tests.faults.test_ranks import pid_of_rank
from tests.small_runs import LONG, TINY
from tests.training.runs import same

HEAD = ("head=transducer", "decoder=transducer_greedy", "optimizer=muon", "trainer.log_every_n_steps=1")
DIVIDED = ("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2")


class SlowWrite(pl.Callback):
    """Makes one checkpoint take long."""

    def setup(self, *_args: object, **_kwargs: object) -> None:
        """Slow the writer of this process."""
        write = FileSystemWriter.write_data

        def slow(writer, *args):
            if str(writer.path).endswith("first/checkpoints/update-000010.parts"):
                time.sleep(60)
            return write(writer, *args)

        FileSystemWriter.write_data = slow


def losses(run_dir: Path) -> list[float]:
    """Return the loss of every update."""
    with (run_dir / "metrics.csv").open() as file:
        return [float(row["value"]) for row in csv.DictReader(file) if row["name"] == "train/loss"]


def test_a_divided_transducer_has_the_losses_of_a_whole_one_and_ends_with_one_file_per_checkpoint(small_run, tmp_path):
    data = f"data.dir={small_run.data_dir}"
    for name, words in (("whole", ("trainer.devices=2",)), ("divided", DIVIDED)):
        small_run.programs.run("train", *TINY, *HEAD, *words, data, f"run_dir={name}", cwd=tmp_path)
    assert losses(tmp_path / "divided") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
    names = {path.name for path in (tmp_path / "divided" / "checkpoints").iterdir()}
    assert names == {"best.ckpt", "last.ckpt", "update-000003.ckpt", "update-000006.ckpt"}


def test_a_divided_run_that_was_killed_while_it_wrote_is_resumed_divided_whole_and_alone(small_run, tmp_path):
    words = (*LONG, *HEAD, *DIVIDED, f"data.dir={small_run.data_dir}", "callbacks.checkpoints.every_n_updates=5")
    words += ("+callbacks.slow._target_=tests.commands.test_fsdp.SlowWrite",)
    process = small_run.programs.start("train", *words, "run_dir=first", cwd=tmp_path, num_spares=2)
    wait_for_update(tmp_path / "first", 12, process)
    assert (tmp_path / "first" / "checkpoints" / "update-000010.parts").exists()  # written while training goes on
    os.kill(pid_of_rank(1, process), signal.SIGKILL)
    assert process.wait(timeout=300) == 128 + signal.SIGKILL
    small_run.programs.run("convert", "run=first", "output=one.ckpt", cwd=tmp_path)
    parts, one = (load_checkpoint(tmp_path / name) for name in ("first/checkpoints/last.ckpt", "one.ckpt"))
    assert same(parts.weights, one.weights)
    budget = ("trainer.max_steps=30", "trainer.val_check_interval=30", "allow_changes=true", "trust=[tests]")
    for name, others in (
        ("divided", ("trainer.async_checkpoints=false",)),
        ("whole", ("trainer.strategy=ddp",)),
        ("alone", ("trainer.strategy=auto", "trainer.devices=1")),
    ):
        shutil.copytree(tmp_path / "first", tmp_path / name, symlinks=True)
        ended = small_run.programs.run("train", f"resume={name}", *budget, *others, cwd=tmp_path)
        assert "resuming from update" in ended.printed
        assert json.loads((tmp_path / name / "report" / "summary.json").read_text())["training"]["resumed_after"] == 5
