"""Runs as jobs of a real scheduler: tasks of srun, and jobs of a sweep that are taken away and come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.test_resume import last, losses, same_weights
from tests.slurm.conftest import WORDS, ask, wait_for
from tests.small_runs import TINY

ASR_TRAIN = (sys.executable, "-m", "asr.commands.train")
LENGTH = ("trainer.max_steps=120", "trainer.val_check_interval=60")
SWEEP = ("-m", "hydra/launcher=slurm", "hydra.launcher.partition=low", "hydra.launcher.cpus_per_task=2")
TAKE = ("sbatch", "--parsable", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1")


def state_of(job: str) -> str:
    return ask("squeue", "--noheader", "--format=%T %r", "--jobs", job)


def training_processes(run_dir: Path) -> list[int]:
    """Return the processes that write to a run's folder."""
    found = subprocess.run(["pgrep", "-f", f"asr.commands train .*{run_dir.name}"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


@pytest.fixture
def sweep(cluster, small_run, tmp_path):
    """Start a sweep of one job on the cluster; yield what has started it, the job, and the folder of its run."""
    log = tmp_path / "log.txt"
    words = (*SWEEP, *TINY, *LENGTH, "seed=5", "sweep.name=one", f"data.dir={small_run.data_dir}")
    with log.open("w") as file:
        process = subprocess.Popen(
            [*ASR_TRAIN, *words], cwd=tmp_path, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    running = ("squeue", "--noheader", "--states=RUNNING", "--format=%A")
    try:
        wait_for(lambda: ask(*running) or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        wait_for(lambda: list(tmp_path.glob("runs/one/*/metrics.csv")), log)
        (metrics,) = tmp_path.glob("runs/one/*/metrics.csv")
        yield process, ask(*running), metrics.parent
    finally:
        process.kill()
        process.wait()
        subprocess.run(["scancel", "--user=root"], check=True)
        wait_for(lambda: not ask("squeue", "--noheader"), log)  # the next test looks for its own job


def told(tmp_path: Path) -> str:
    """Return all that the job and its run have printed."""
    places = ("submitit/*/*.out", "submitit/*/*.err", "*.log")
    return "\n".join(path.read_text() for place in places for path in tmp_path.glob(f"runs/one/jobs/{place}"))


def test_tasks_of_srun_train_together_to_a_wer(cluster, small_run, tmp_path):
    words = (*TINY, *WORDS, "trainer=slurm", "trainer.devices=2", f"data.dir={small_run.data_dir}", "run_dir=run")
    srun = ("srun", "--nodes=1", "--ntasks-per-node=2")
    done = subprocess.run([*srun, *ASR_TRAIN, *words], cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    summary = json.loads((tmp_path / "run" / "report" / "summary.json").read_text())
    assert [results["wer"] >= 0 for results in summary["test"].values()] == [True]
    assert last(tmp_path / "run")["global_step"] == 6


def test_a_job_that_is_taken_away_is_queued_again_and_resumes_exactly(sweep, small_run, tmp_path):
    process, job, run_dir = sweep
    # SLURM sends SIGCONT before SIGTERM: the run cannot end before it is taken away
    for pid in training_processes(run_dir):
        os.kill(pid, signal.SIGSTOP)
    ask(*TAKE)
    wait_for(lambda: "BeginTime" in state_of(job), tmp_path / "log.txt")
    wait_for(lambda: "is queued again" in told(tmp_path), tmp_path / "log.txt")
    assert "received SIGTERM: stopped after update" in told(tmp_path)
    assert f"job {job} is queued again, and will resume its run" in told(tmp_path)
    ask("scontrol", "update", f"jobid={job}", "StartTime=now")
    assert process.wait(timeout=300) == 0, told(tmp_path)
    assert "1 jobs: 1 finished" in (tmp_path / "log.txt").read_text()
    assert "resuming from update" in told(tmp_path)
    small_run.run("train", *TINY, *LENGTH, "seed=5", f"run_dir={tmp_path / 'whole'}")
    assert same_weights(last(run_dir), last(tmp_path / "whole"))
    assert losses(run_dir) == losses(tmp_path / "whole")


def test_a_job_near_its_time_limit_saves_and_is_queued_again(sweep, tmp_path):
    """Submitit has SLURM send SIGUSR2 some minutes before."""
    _, job, run_dir = sweep
    for pid in training_processes(run_dir):
        os.kill(pid, signal.SIGSTOP)
    ask("scancel", "--signal=USR2", job)
    for pid in training_processes(run_dir):
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: "BeginTime" in state_of(job), tmp_path / "log.txt")
    assert "stopped after update" in told(tmp_path)
    assert list(run_dir.glob("checkpoints/update-*.ckpt"))


def test_a_job_that_is_cancelled_saves_and_stays_cancelled(sweep, tmp_path):
    _, job, run_dir = sweep
    for pid in training_processes(run_dir):
        os.kill(pid, signal.SIGSTOP)
    ask("scancel", job)
    wait_for(lambda: not ask("squeue", "--noheader"), tmp_path / "log.txt")
    assert "received SIGTERM: stopped after update" in told(tmp_path)
    assert "queued again" not in told(tmp_path)
