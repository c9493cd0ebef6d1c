"""What the process that starts one process per device makes of their ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from asr.commands.app import quieten
from asr.processes import Terminated, restored_handlers
from asr.training import processes
from asr.training.processes import _exit_code, forward_signals
from werdict.errors import DIVERGED, LOST_PEER

GOES_ON = "trap : TERM; echo > {}; while :; do sleep 0.1; done"

Ends = Callable[..., SubprocessContext]


@pytest.fixture
def ends(tmp_path):
    """Start programs as ranks, which are killed after the test; those with {} have a file that says that they wait."""
    started: list[SubprocessContext] = []

    def start(*programs: str) -> SubprocessContext:
        words = {rank: ("-c", program.format(tmp_path / f"{rank}")) for rank, program in enumerate(programs)}
        started.append(SubprocessContext("x", "sh", words, {rank: {} for rank in words}, DefaultLogsSpecs(os.devnull)))
        started[-1].start()
        return started[-1]

    quieten()  # torch's logger would print to what pytest has closed
    with restored_handlers((*processes.HANDLED, signal.SIGQUIT)):
        yield start
        for ranks in started:
            ranks.close(signal.SIGKILL)


def signaled(folder: Path, num: int, *numbers: signal.Signals) -> threading.Thread:
    """Signal this process once so many programs wait; a program may get a signal only once it has a handler."""

    def send() -> None:
        while len(list(folder.iterdir())) < num:
            wake.wait(0.02)
        for number in numbers:
            os.kill(os.getpid(), number)
            wake.wait(0.4)

    wake = threading.Event()
    sender = threading.Thread(target=send)
    sender.start()
    return sender


def code_of(codes: dict[int, int], *forwarded: signal.Signals) -> int:
    return _exit_code(codes, forwarded, 2, Path("run"))


def exit_codes(ranks: SubprocessContext) -> dict[int, int]:
    result = ranks.wait(period=0.05)
    assert result is not None
    return {rank: failure.exitcode for rank, failure in result.failures.items()}


@pytest.mark.parametrize(("number", "raises"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_second_signal_ends_processes_that_go_on(ends: Ends, tmp_path, monkeypatch, number, raises):
    monkeypatch.setattr(processes, "AGAIN_S", 0.2)
    ranks = ends(*[GOES_ON.replace("TERM", number.name[3:])] * 2)
    forward_signals(ranks)
    sender = signaled(tmp_path, 2, number, number)
    with pytest.raises(raises):
        exit_codes(ranks)
    sender.join()


def test_a_process_that_hangs_is_ended_once_another_has_failed(ends: Ends):
    codes = exit_codes(ends("exit 3", "exec sleep 60"))
    assert codes == {0: 3, 1: -signal.SIGTERM}


def test_a_signal_that_was_passed_on_is_no_failure_of_a_process(capsys):
    assert code_of({0: 75, 1: -signal.SIGTERM}, signal.SIGTERM) == 75
    assert code_of({0: 75, 1: -signal.SIGKILL}, signal.SIGTERM) == 75, "torch kills one that hangs"
    assert code_of({1: 75, 0: 75}) == 75, "a process was signalled alone"
    assert code_of({0: 75, 1: 75}, signal.SIGINT) == 130
    with pytest.raises(Terminated):
        code_of({0: -signal.SIGTERM, 1: -signal.SIGTERM}, signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        code_of({0: 130, 1: 130}, signal.SIGINT)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("forwarded", [(), (signal.SIGUSR1,)])
def test_a_process_that_was_killed_or_failed_is_named(capsys, forwarded):
    assert code_of({1: -signal.SIGKILL, 0: LOST_PEER}, *forwarded) == 137
    assert "process 1 of 2 was killed by SIGKILL; the others were ended" in capsys.readouterr().err
    if not forwarded:
        assert code_of({1: -signal.SIGTERM}) == 143
        assert "process 1 of 2 was killed by SIGTERM; the others were ended" in capsys.readouterr().err
    assert code_of({0: 3, 1: -signal.SIGTERM}, *forwarded) == 3
    assert "process 0 of 2 ended with exit code 3; the others were ended" in capsys.readouterr().err
    assert code_of({0: LOST_PEER, 1: 1}, *forwarded) == 1
    assert code_of({0: LOST_PEER, 1: DIVERGED}, *forwarded) == DIVERGED
    assert capsys.readouterr().err == "", "that process has printed why"
    assert code_of({0: LOST_PEER}, *forwarded) == LOST_PEER
    assert "process 0 of 2 lost its connection to the others" in capsys.readouterr().err
