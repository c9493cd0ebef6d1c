"""What the process that starts one process per device makes of their ends."""

from __future__ import annotations

import math
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from asr.commands import launcher
from asr.commands.launcher import _wait
from asr.errors import DIVERGED, LOST_PEER
from asr.signals import Terminated

SAVED, KILLED, FAILED = "exit 75", "kill -TERM $$", "exit 3"
TERM = {signal.SIGTERM: [math.inf]}  # not long ago
HERE = Path("run")
HANGS = "exec sleep 9"
KILLED_LATER = f"sleep 0.5; {KILLED}"


Ends = Callable[..., list[subprocess.Popen[bytes]]]


@pytest.fixture
def ends():
    """Start programs, which are killed after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*programs: str) -> list[subprocess.Popen[bytes]]:
        own = [subprocess.Popen(["sh", "-c", program]) for program in programs]
        started.extend(own)
        return own

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_signal_that_was_passed_on_is_no_failure_of_a_process(ends: Ends, capsys, monkeypatch):
    assert _wait(ends(SAVED, KILLED), TERM, HERE) == 75
    assert _wait(ends(SAVED, KILLED_LATER), TERM, HERE) == 75
    monkeypatch.setattr(launcher, "GRACE_S", 0.2)
    assert _wait(ends(SAVED, HANGS), TERM, HERE) == 75
    with pytest.raises(Terminated):
        _wait(ends(KILLED, KILLED), TERM, HERE)
    assert capsys.readouterr().err == ""


def test_a_process_that_goes_on_after_sigterm_is_killed_only_where_another_has_ended(ends: Ends, capsys, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE_S", 0.3)
    long_ago = {signal.SIGTERM: [time.monotonic() - 100]}
    assert _wait(ends("exit 0", HANGS), long_ago, HERE) == 75
    assert "process 1 of 2 did not end within 0.3 s after SIGTERM" in capsys.readouterr().err
    validates = "sleep 1.5; exit 75"
    ranks = ends(validates, validates)
    assert _wait(ranks, long_ago, HERE) == 75
    assert [process.returncode for process in ranks] == [75, 75], "none was killed"
    assert capsys.readouterr().err == "asr-train: still waiting for 2 processes to save; SIGTERM once more kills them\n"


def test_processes_that_all_hang_are_killed_at_the_second_sigterm(ends: Ends, capsys, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE_S", 0.3)
    now = time.monotonic()
    assert _wait(ends(HANGS, HANGS), {signal.SIGTERM: [now - 100, now]}, HERE) == 75
    assert "2 processes did not end after SIGTERM, and were killed at the next one; " in capsys.readouterr().err


@pytest.mark.parametrize("forwarded", [{}, {signal.SIGUSR1: [0.0]}])
def test_a_process_that_was_killed_or_failed_is_named(ends: Ends, capsys, forwarded):
    assert _wait(ends("exit 0", KILLED), forwarded, HERE) == 143
    assert "process 1 of 2 was killed by SIGTERM; the others were ended" in capsys.readouterr().err
    assert _wait(ends(FAILED, "exit 0"), forwarded, HERE) == 3
    assert "process 0 of 2 ended with exit code 3; the others were ended" in capsys.readouterr().err
    assert _wait(ends(f"exit {LOST_PEER}", "sleep 0.3; exit 1"), forwarded, HERE) == 1
    assert capsys.readouterr().err == "", "that process has printed why"
    assert _wait(ends(f"exit {LOST_PEER}", f"sleep 0.3; exit {DIVERGED}"), forwarded, HERE) == DIVERGED
    assert capsys.readouterr().err == "", "that process has printed why"
    assert _wait(ends(f"exit {LOST_PEER}", "exit 0"), forwarded, HERE) == LOST_PEER
    assert "process 0 of 2 lost its connection to the others" in capsys.readouterr().err
