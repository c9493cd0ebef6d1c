"""Sweeps: every job a fresh process, killed and started again, alone, in parallel, and with several ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from asr.sweeps.jobs import records
from tests.commands.conftest import TINY, Workplace
from tests.commands.test_resume import data, last, losses, same_weights, wait_for_update
from tests.programs import start_anew

QUICK = (*TINY, "logger=csv", "trainer.max_steps=2", "trainer.val_check_interval=2")


def jobs(sweep_dir: Path) -> dict[str, str]:
    """Return the state of each job by its first override."""
    return {record.overrides[0]: record.status for record in records(sweep_dir)}


def folder_of(sweep_dir: Path, word: str) -> Path:
    (name,) = [record.name for record in records(sweep_dir) if word in record.overrides]
    return sweep_dir / name


def wait_for_folder(sweep_dir: Path, word: str, process: subprocess.Popen[str]) -> Path:
    while not (sweep_dir.exists() and any(word in record.overrides for record in records(sweep_dir))):
        assert process.poll() is None, f"{word} was never started"
        time.sleep(0.02)
    return folder_of(sweep_dir, word)


def test_a_sweep_that_was_killed_is_resumed_where_it_was(trained, tmp_path):
    names = ("sweep.name=first", "sweep.target_wer=0.9")
    words = ("-m", "optimizer=eve,adamw", *names, *TINY, "logger=csv", f"data.dir={data(trained)}")
    process = start_anew("train", *words, cwd=tmp_path)
    sweep_dir = tmp_path / "runs" / "first"
    killed = wait_for_folder(sweep_dir, "optimizer=adamw", process)
    wait_for_update(killed, 7, process)
    # of all processes the kernel ends the others: nobody else is told
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    printed = Workplace(tmp_path).run("train", *words)
    assert jobs(sweep_dir) == {"optimizer=eve": "finished", "optimizer=adamw": "finished"}
    assert killed.name.startswith("optimizer-adamw-"), "what is the same in all jobs is not in their names"
    assert "resuming from update 6" in printed
    assert "2 jobs: 2 finished (1 of them before). To compare them: asr-compare sweep=first" in printed
    assert same_weights(last(killed), last(trained.run_dir))
    assert losses(killed) == losses(trained.run_dir)
    assert OmegaConf.load(killed / "config.yaml").sweep.target_wer == 0.9


def test_an_option_that_no_optimizer_has_is_refused_before_the_first_job(tmp_path):
    printed = Workplace(tmp_path).run("train", "-m", "optimizer.epss=1,2", "sweep.name=typo", code=2)
    assert "optimizer.epss" in printed.strip().splitlines()[-2]
    assert not (tmp_path / "runs" / "typo" / "jobs").exists()


def test_a_failing_job_does_not_stop_the_others_and_is_named_at_the_end(trained, tmp_path):
    words = ("-m", "encoder.num_layers=0,1", "sweep.name=mixed", f"data.dir={data(trained)}")
    printed = Workplace(tmp_path).run("train", *QUICK, *words, code=1)
    found = {word: r.status for r in records(tmp_path / "runs" / "mixed") for word in r.overrides if "layers" in word}
    assert "encoder.num_layers" in printed
    assert found == {"encoder.num_layers=0": "failed", "encoder.num_layers=1": "finished"}
    (refused,) = [record.name for record in records(tmp_path / "runs" / "mixed") if record.failed]
    assert f"2 jobs: 1 finished, 1 not: {refused}; " in printed
    words = ("-m", "encoder.num_layers=1", "sweep.name=mixed", f"data.dir={data(trained)}")
    printed = Workplace(tmp_path).run("train", *QUICK, *words)
    assert "not finished, started by another command of this sweep: " in printed
    assert "1 jobs: 1 finished (1 of them before). " in printed


def test_each_value_that_is_swept_is_a_job_and_the_same_command_finds_them_again(trained, tmp_path):
    quick = [word for word in QUICK if not word.startswith("torch_threads")]
    words = (*quick, "-m", "sweep.name=all", f"data.dir={data(trained)}")
    assert "2 jobs: 2 finished. " in Workplace(tmp_path).run("train", *words, "torch_threads=1,2")
    taken = [record.seconds for record in records(tmp_path / "runs" / "all")]
    printed = Workplace(tmp_path).run("train", *words, "torch_threads=1,2")
    assert "2 jobs: 2 finished (2 of them before)" in printed
    assert [record.seconds for record in records(tmp_path / "runs" / "all")] == taken
    assert min(taken) > 0
    # one of another command counts as before, too
    printed = Workplace(tmp_path).run("train", *words, "torch_threads=1", "optimizer.lr=1e-3")
    assert "3 jobs: 3 finished (2 of them before)" in printed


def test_two_jobs_at_a_time_of_two_ranks_each(trained, tmp_path):
    """Lightning on its own would start the multirun again in every rank."""
    words = ("-m", "optimizer=adamw,eve", "sweep.name=ranks", "hydra/launcher=parallel", "trainer.devices=2")
    printed = Workplace(tmp_path).run(
        "train", *words, *QUICK, "data.batch.max_duration_s=10", f"data.dir={data(trained)}"
    )
    sweep_dir = tmp_path / "runs" / "ranks"
    assert jobs(sweep_dir) == {"optimizer=adamw": "finished", "optimizer=eve": "finished"}
    assert "2 jobs: 2 finished" in printed
    assert len(list((sweep_dir / "jobs").glob("*.log"))) == 2
    for word in ("optimizer=adamw", "optimizer=eve"):
        assert (folder_of(sweep_dir, word) / "report" / "summary.json").is_file()


@pytest.mark.parametrize("launcher", ["submitit_local", "ray_cluster"])
def test_other_launchers_run_jobs_too(launcher, trained, tmp_path):
    words = ("-m", "seed=5", "sweep.name=one", f"hydra/launcher={launcher}", f"data.dir={data(trained)}")
    printed = Workplace(tmp_path).run_fresh("train", *words, *QUICK)
    assert jobs(tmp_path / "runs" / "one") == {"seed=5": "finished"}
    assert "1 jobs: 1 finished" in printed
