"""Ctrl-C at any moment ends in one line and exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import lightning.pytorch as pl
import pytest

from asr.training.checkpoints import newest_update
from tests.commands.test_resume import wait_for_update
from tests.programs import Started, start_anew, wait_until
from tests.small_runs import LONG, MANY_SHARDS, SMALL_SHARDS


class SlowThirdUpdate(pl.Callback):
    """Gives the time for a second Ctrl-C."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        if trainer.global_step == 2:
            Path(f"{trainer.global_rank} sleeps").touch()
            for _ in range(1000):
                time.sleep(0.1)  # a signal may wake another thread, and is handled after the sleep of this one


def interrupted(process: subprocess.Popen[str] | Started, folder: Path) -> list[str]:
    os.killpg(process.pid, signal.SIGINT)
    code = process.wait(timeout=120)
    printed = (folder / "log.txt").read_text()
    assert "Traceback" not in printed, printed
    assert code == 130, printed
    return printed.splitlines()


def wait_for_cpu(process: subprocess.Popen[str], cpu_s: float) -> bool:
    """Wait until a process has used so much CPU time; return whether it has, before its end."""
    while process.poll() is None:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= cpu_s:
            return True
        time.sleep(0.005)
    return False


@pytest.mark.parametrize("cpu_s", [0.3, 1.5])
def test_an_interrupt_at_start_up_is_one_line(tmp_path, cpu_s):
    process = start_anew("train", "trainer.max_steps=0", cwd=tmp_path)
    if wait_for_cpu(process, cpu_s):
        assert interrupted(process, tmp_path) == ["asr-train: interrupted"]
    else:
        # a fast machine has refused the command line already
        assert process.returncode == 2


@pytest.mark.parametrize("devices", [1, 2], ids=["one process", "two processes"])
def test_an_interrupted_training_says_how_to_resume(small_run, tmp_path, devices):
    words = (*LONG, f"data.dir={small_run.data_dir}", "run_dir=run", f"trainer.devices={devices}")
    process = small_run.programs.start("train", *words, cwd=tmp_path, num_spares=devices)
    wait_for_update(tmp_path / "run", 2, process)
    lines = interrupted(process, tmp_path)
    (line,) = [line for line in lines if line.startswith("asr-train: interrupted")]
    update = newest_update(tmp_path / "run" / "checkpoints")
    assert f"update {update}, saved" in line
    assert line.endswith(f" asr-train resume={tmp_path / 'run'}")


@pytest.mark.parametrize("devices", [1, 2], ids=["one process", "two processes"])
def test_a_second_interrupt_ends_a_training_at_once_and_tells_that_there_is_no_checkpoint(small_run, tmp_path, devices):
    words = (*LONG, f"data.dir={small_run.data_dir}", "run_dir=run", f"trainer.devices={devices}")
    words += ("+callbacks.slow._target_=tests.faults.test_interrupts.SlowThirdUpdate",)
    process = small_run.programs.start("train", *words, cwd=tmp_path, num_spares=devices)
    wait_until(lambda: len(list(tmp_path.glob("* sleeps"))) == devices)
    os.killpg(process.pid, signal.SIGINT)
    wait_until(lambda: "Ctrl-C again" in (tmp_path / "log.txt").read_text())
    lines = interrupted(process, tmp_path)
    (line,) = [line for line in lines if line.startswith("asr-train: interrupted")]
    assert "no checkpoint" in line
    assert newest_update(tmp_path / "run" / "checkpoints") is None


def test_an_interrupted_preparation_leaves_nothing_half_made(programs, tmp_path):
    process = programs.start("prepare", *MANY_SHARDS, cwd=tmp_path, constants=SMALL_SHARDS)
    while not list(tmp_path.glob("data/digits/*/*")):
        assert process.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.02)
    assert interrupted(process, tmp_path)[-1].startswith("asr-prepare: interrupted")
    assert not list(tmp_path.glob("data/digits/*/corpus.json"))
    assert not list(tmp_path.glob("data/digits/*/*/prepared.json"))
