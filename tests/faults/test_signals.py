"""A signal that asks for an end, at any moment, ends a command in one line; a run or a sweep can be resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from asr.signals import TRY_AGAIN, Terminated, end_if_asked
from asr.sweeps.records import records
from tests.commands.test_resume import wait_for_update
from tests.faults.test_interrupts import start, wait_for_cpu
from tests.programs import Started
from tests.small_runs import LONG, MANY_SHARDS, SMALL_SHARDS

pytestmark = pytest.mark.slow  # the quick ones: test_preemption.py of tests/commands and tests/training

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
    ("command", "number", "cpu_s", "code", "said"),
    [
        ("train", signal.SIGTERM, 0.5, TRY_AGAIN, f"asr-train: ended by SIGTERM {AGAIN}"),
        ("compare", signal.SIGTERM, 0.5, 143, "asr-compare: ended by SIGTERM"),
    ],
)
def test_a_signal_at_start_up_is_one_line(tmp_path, command, number, cpu_s, code, said):
    process = start(tmp_path, command, *(LONG if command == "train" else ("sweep=none",)))
    assert wait_for_cpu(process, cpu_s)
    assert ended(process, tmp_path, number)[::2] == (code, f"{said}\n")


def test_a_signal_in_preparation_is_one_line(programs, tmp_path):
    process = programs.start("prepare", *MANY_SHARDS, cwd=tmp_path, constants=SMALL_SHARDS)
    while not list(tmp_path.glob("data/digits/*/*")):
        assert process.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.02)
    assert ended(process, tmp_path, signal.SIGUSR1)[:2] == (138, "asr-prepare: ended by SIGUSR1")
    assert not list(tmp_path.glob("data/digits/*/*/prepared.json"))


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
    try:
        try:
            raise asked
        finally:
            raise TypeError("half made")
    except TypeError as error:
        with pytest.raises(type(asked)) as raised:
            end_if_asked(error)
        assert raised.value is asked
    end_if_asked(ValueError("nobody has asked"))
    one, other = ValueError("caused by the other"), ValueError("caused by the one")
    one.__cause__, other.__cause__ = other, one
    end_if_asked(one)


def test_a_signal_that_is_ignored_stays_ignored(small_run, tmp_path):
    words = (*LONG, f"data.dir={small_run.data_dir}", "run_dir=run")
    process = small_run.programs.start("train", *words, cwd=tmp_path, ignored=signal.SIGHUP)
    wait_for_update(tmp_path / "run", 2, process)
    process.send_signal(signal.SIGHUP)
    wait_for_update(tmp_path / "run", 10, process)
    assert ended(process, tmp_path, signal.SIGTERM)[0] == TRY_AGAIN
    assert "SIGHUP" not in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(("number", "steps"), [(signal.SIGUSR1, "2,50000")])
def test_a_sweep_that_is_signalled_hands_it_on_and_can_be_resumed(small_run, tmp_path, number, steps):
    words = (*LONG[:-2], LONG[-1], f"data.dir={small_run.data_dir}", "sweep.name=s", f"trainer.max_steps={steps}")
    process = small_run.programs.start("train", "-m", *words, cwd=tmp_path, num_spares=2)
    sweep_dir = tmp_path / "runs" / "s"
    while len(records(sweep_dir)) <= steps.count(","):
        assert process.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.05)
    *finished, interrupted = sorted(records(sweep_dir), key=lambda record: not record.status.startswith("finished"))
    wait_for_update(sweep_dir / interrupted.name, 2, process)
    if finished:
        os.killpg(process.pid, number)  # as a terminal signals the job too
    code, line, printed = ended(process, tmp_path, number)
    assert code == TRY_AGAIN, printed
    assert f"received {number.name}: stopped after update" in printed
    assert line == (
        f"asr-train: ended by {number.name}; to resume: the same command again, with sweep.name=s; finished jobs: "
        f"{', '.join(record.name for record in finished) or 'none'}; not finished: {interrupted.name}"
    )
    assert list((sweep_dir / interrupted.name / "checkpoints").glob("update-*.ckpt"))
    assert [record.status for record in records(sweep_dir) if record.name == interrupted.name] == ["interrupted"]


@pytest.fixture
def two_jobs(small_run, tmp_path):
    """A sweep that trains two jobs at a time, after an update of each, and its folder."""
    words = (*LONG, f"data.dir={small_run.data_dir}", "sweep.name=s", "seed=1,2", "hydra/launcher=parallel")
    process = small_run.programs.start("train", "-m", *words, cwd=tmp_path)
    sweep_dir = tmp_path / "runs" / "s"
    while len(found := records(sweep_dir)) < 2:
        assert process.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.05)
    for job in found:
        wait_for_update(sweep_dir / job.name, 2, process)
    return process, sweep_dir


def members(group: int) -> list[str]:
    """Return the command lines of the processes of a group, but for those that have ended."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, own = (place / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(own) == group and state != "Z":
                found.append((place / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, TRY_AGAIN, "ended by SIGTERM; to resume: the same"),
        (signal.SIGINT, 130, "interrupted; to resume: the same"),
    ],
)
def test_jobs_at_a_time_are_all_told_of_a_signal_and_waited_for(two_jobs, tmp_path, number, code, said):
    process, sweep_dir = two_jobs
    found, line, printed = ended(process, tmp_path, number)
    names = [record.name for record in records(sweep_dir)]
    assert found == code, printed
    assert line == (
        f"asr-train: {said} command again, with sweep.name=s; finished jobs: none; not finished: {', '.join(names)}"
    )
    assert members(process.pid) == []
    assert [record.status for record in records(sweep_dir)] == ["interrupted"] * 2
    if number == signal.SIGTERM:
        for name in names:
            assert list((sweep_dir / name / "checkpoints").glob("update-*.ckpt"))


def test_jobs_at_a_time_end_with_a_sweep_that_is_killed(two_jobs):
    process, _ = two_jobs
    assert len(members(process.pid)) >= 5, "the sweep, and for each job a process that waits and one that trains"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    deadline = time.monotonic() + 10
    while left := members(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_an_interrupted_sweep_says_how_it_is_resumed_and_is_no_job_of_another(small_run, tmp_path):
    words = (*LONG, f"data.dir={small_run.data_dir}", "sweep.name=s")
    process = small_run.programs.start("train", "-m", *words, cwd=tmp_path, num_spares=1)
    sweep_dir = tmp_path / "runs" / "s"
    while not records(sweep_dir):
        assert process.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.05)
    (job,) = records(sweep_dir)
    wait_for_update(sweep_dir / job.name, 2, process)
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "runs").symlink_to(tmp_path / "runs")
    second = small_run.programs.start("train", "-m", *words, cwd=tmp_path / "second", num_spares=1)
    assert second.wait(timeout=300) == 1
    assert "another process is running it, left alone" in (tmp_path / "second" / "log.txt").read_text()
    assert [record.status for record in records(sweep_dir)] == ["running"]
    code, line, _ = ended(process, tmp_path, signal.SIGINT)
    assert code == 130
    assert line == (
        "asr-train: interrupted; to resume: the same command again, with sweep.name=s; finished jobs: none; "
        f"not finished: {job.name}"
    )


def test_a_tuned_sweep_never_chooses_without_a_trial_that_was_killed(small_run, tmp_path):
    long, budget = LONG[:-2], "trainer.max_steps=50000"
    assert LONG[-2].startswith("trainer.max_steps")
    words = (*long, LONG[-1], budget, f"data.dir={small_run.data_dir}", "sweep=lr", "sweep.name=s", "sweep.trials=1")
    process = small_run.programs.start("train", "-m", *words, cwd=tmp_path, num_spares=1)
    sweep_dir = tmp_path / "runs" / "s"
    while not records(sweep_dir):
        assert process.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.05)
    (trial,) = records(sweep_dir)
    wait_for_update(sweep_dir / trial.name, 2, process)
    for pid in subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, text=True).stdout.split():
        if int(pid) != process.pid:
            os.kill(int(pid), signal.SIGKILL)
    assert process.wait(timeout=300) == 1
    last = (tmp_path / "log.txt").read_text().strip().splitlines()[-1]
    assert "the sweep stops before it chooses: 1 trial did not finish, and not because of diverging" in last
    assert last.endswith(f"{trial.name}; to resume: the same command again, with sweep.name=s")
    assert [record.name for record in records(sweep_dir)] == [trial.name]
    assert not (sweep_dir / "tuning.json").exists()
