"""What the process that starts one process per device makes of their ends."""

from __future__ import annotations

import signal
import subprocess

import pytest

from asr.cli.launcher import _wait
from asr.signals import Terminated

SAVED, KILLED, FAILED = "exit 75", "kill -TERM $$", "exit 3"
KILLED_LATER = f"sleep 0.5; {KILLED}"


def ends(*programs: str) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen(["sh", "-c", program]) for program in programs]


def test_a_signal_that_was_passed_on_is_no_failure_of_a_process(capsys):
    assert _wait(ends(SAVED, KILLED), {signal.SIGTERM}) == 75
    assert _wait(ends(SAVED, KILLED_LATER), {signal.SIGTERM}) == 75
    with pytest.raises(Terminated):
        _wait(ends(KILLED, KILLED), {signal.SIGTERM})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("forwarded", [set(), {signal.SIGUSR1}])
def test_a_process_that_was_killed_or_failed_is_named(capsys, forwarded):
    assert _wait(ends("exit 0", KILLED), forwarded) == 143
    assert "process 1 of 2 was killed by SIGTERM; the others were ended" in capsys.readouterr().err
    assert _wait(ends(FAILED, "exit 0"), forwarded) == 3
    assert "process 0 of 2 ended with exit code 3; the others were ended" in capsys.readouterr().err
