"""A signal that asks for an end, at any moment, ends a command in one line; a run or a sweep can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from asr.processes import TRY_AGAIN, Terminated, signals_first
from asr.sweeps.jobs import records
from tests.commands.test_resume import wait_for_update
from tests.faults.test_interrupts import wait_for_cpu
from tests.programs import Started, start_anew, wait_until
from tests.small_runs import LONG

AGAIN = "before training began; run the same command again"


@pytest.fixture(autouse=True)
def hears_of_a_closed_terminal():
    """Undo nohup, which the processes of a test would inherit from pytest."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def ended(process: subprocess.Popen[str] | Started, folder: Path, number: signal.Signals) -> tuple[int, str, str]:
    """Signal one process; return its exit code, its last line, and all that was printed."""
    process.send_signal(number)
    code = process.wait(timeout=300)
    printed = (folder / "log.txt").read_text()
    assert "Traceback" not in printed, printed
    lines = [line for line in printed.splitlines() if line.strip()]
    return code, lines[-1] if lines else "", printed


@pytest.mark.parametrize(
    ("command", "code", "said"), [("train", TRY_AGAIN, f" {AGAIN}"), ("compare", 128 + signal.SIGTERM, "")]
)
def test_a_signal_at_start_up_is_one_line(tmp_path, command, code, said):
    process = start_anew(command, *(LONG if command == "train" else ("sweep=none",)), cwd=tmp_path)
    assert wait_for_cpu(process, 0.5)
    assert ended(process, tmp_path, signal.SIGTERM)[::2] == (code, f"asr-{command}: ended by SIGTERM{said}\n")


@pytest.mark.parametrize(("number", "devices"), [(signal.SIGXCPU, 1), (signal.SIGHUP, 2)])
def test_a_closed_terminal_and_a_limit_of_time_leave_a_checkpoint(small_run, tmp_path, number, devices):
    words = (*LONG, f"data.dir={small_run.data_dir}", "data.workers.num_workers=1", f"trainer.devices={devices}")
    process = small_run.programs.start("train", *words, "run_dir=run", cwd=tmp_path, num_spares=devices)
    wait_for_update(tmp_path / "run", 2, process)
    os.killpg(process.pid, number)
    code, line, printed = ended(process, tmp_path, number)
    assert code == TRY_AGAIN, printed
    assert f"received {number.name}: stopped after update" in printed
    assert line.endswith(f"asr-train resume={tmp_path / 'run'}")
    assert list((tmp_path / "run" / "checkpoints").glob("update-*.ckpt"))


@pytest.mark.parametrize("asked", [Terminated(signal.SIGHUP, str), KeyboardInterrupt()], ids=["SIGHUP", "Ctrl-C"])
def test_an_error_of_a_library_that_clears_away_hides_no_signal(asked):
    def fails_after() -> None:
        try:
            raise asked
        finally:
            raise TypeError("half made")

    with pytest.raises(type(asked)) as raised, signals_first():
        fails_after()
    assert raised.value is asked
    one, other = ValueError("caused by the other"), ValueError("caused by the one")
    one.__cause__, other.__cause__ = other, one
    with pytest.raises(ValueError, match="by the other"), signals_first():
        raise one


def test_a_signal_that_is_ignored_stays_ignored(small_run, tmp_path):
    words = (*LONG, f"data.dir={small_run.data_dir}", "run_dir=run")
    process = small_run.programs.start("train", *words, cwd=tmp_path, ignored=signal.SIGHUP)
    wait_for_update(tmp_path / "run", 2, process)
    process.send_signal(signal.SIGHUP)
    wait_for_update(tmp_path / "run", 10, process)
    assert ended(process, tmp_path, signal.SIGTERM)[0] == TRY_AGAIN
    assert "SIGHUP" not in (tmp_path / "log.txt").read_text()


def words_of(small_run, *words: str) -> tuple[str, ...]:
    return (*LONG[:-2], LONG[-1], f"data.dir={small_run.data_dir}", "sweep.name=s", *words)


def sweep(small_run, folder: Path, num_jobs: int, *words: str, num_spares: int = 0):
    """Start a sweep of so many jobs; return its process and its folder once the last has made an update."""
    process = small_run.programs.start("train", "-m", *words_of(small_run, *words), cwd=folder, num_spares=num_spares)
    sweep_dir = folder / "runs" / "s"
    while len(found := records(sweep_dir)) < num_jobs:
        assert process.poll() is None, (folder / "log.txt").read_text()
        time.sleep(0.05)
    for job in found:
        if not job.status.startswith("finished"):
            wait_for_update(sweep_dir / job.name, 2, process)
    return process, sweep_dir


def at_work(process: Started) -> bool:
    """Return whether any process of its group is."""
    return subprocess.run(["pgrep", "-r", "R,S,D,T", "-g", str(process.pid)]).returncode == 0


@pytest.mark.parametrize("launcher", ["basic", "parallel"])
def test_a_sweep_that_is_signalled_hands_it_on_and_can_be_resumed(small_run, tmp_path, launcher):
    steps = "trainer.max_steps=2,50000" if launcher == "basic" else "trainer.max_steps=50000,50001"
    spares = 2 if launcher == "basic" else 0
    process, sweep_dir = sweep(small_run, tmp_path, 2, steps, f"hydra/launcher={launcher}", num_spares=spares)
    names = [job.name for job in records(sweep_dir) if not job.status.startswith("finished")]
    assert len(names) == (1 if launcher == "basic" else 2)
    code, line, printed = ended(process, tmp_path, signal.SIGUSR1)
    assert code == TRY_AGAIN, printed
    assert line.startswith("asr-train: ended by SIGUSR1; to resume: run the same command again with sweep.name=s")
    assert line.endswith(f"not finished: {', '.join(names)}")
    assert not at_work(process), "a job was not waited for"
    for name in names:
        assert list((sweep_dir / name / "checkpoints").glob("update-*.ckpt"))
    assert {record.status for record in records(sweep_dir) if record.name in names} == {"interrupted"}


def test_jobs_at_a_time_end_with_a_sweep_that_is_killed(small_run, tmp_path):
    process, _ = sweep(small_run, tmp_path, 2, "trainer.max_steps=50000,50001", "hydra/launcher=parallel")
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    wait_until(lambda: not at_work(process), 10)


def test_an_interrupted_sweep_says_how_it_is_resumed_and_is_no_job_of_another(small_run, tmp_path):
    process, sweep_dir = sweep(small_run, tmp_path, 1, "trainer.max_steps=50000", num_spares=1)
    (job,) = records(sweep_dir)
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "runs").symlink_to(tmp_path / "runs")
    words = words_of(small_run, "trainer.max_steps=50000")
    second = small_run.programs.start("train", "-m", *words, cwd=tmp_path / "second", num_spares=1)
    assert second.wait(timeout=300) == 1
    assert "another process is running it" in (tmp_path / "second" / "log.txt").read_text()
    assert [record.status for record in records(sweep_dir)] == ["running"]
    code, line, _ = ended(process, tmp_path, signal.SIGINT)
    assert code == 130
    assert line.startswith("asr-train: interrupted; to resume: run the same command again with sweep.name=s")
    assert line.endswith(f"not finished: {job.name}")
    assert list((sweep_dir / job.name / "checkpoints").glob("update-*.ckpt"))


def test_a_tuned_sweep_never_chooses_without_a_trial_that_was_killed(small_run, tmp_path):
    words = ("trainer.max_steps=50000", "sweep=lr", "sweep.trials=1")
    process, sweep_dir = sweep(small_run, tmp_path, 1, *words, num_spares=1)
    for pid in subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, text=True).stdout.split():
        if int(pid) != process.pid:
            os.kill(int(pid), signal.SIGKILL)
    assert process.wait(timeout=300) == 1
    assert "the sweep stops before it chooses: 1 trial did not finish" in (tmp_path / "log.txt").read_text()
    assert not (sweep_dir / "tuning.json").exists()
