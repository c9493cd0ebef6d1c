"""Starts one process per device on this machine, and ends all of them when one dies."""

from __future__ import annotations

import functools
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from asr.console import one_line
from asr.errors import DIVERGED, LOST_PEER
from asr.signals import ENDING, INTERRUPTED, TRY_AGAIN, Terminated, listen, restored_handlers
from asr.subprocesses import die_with_parent
from asr.training.checkpoints.files import how_to_resume

POLL_S = 0.1
GRACE_S = 20.0  # for the other processes to end too; many schedulers kill all of them 30 s after SIGTERM
SAID = (1, 2, DIVERGED)  # exit codes of processes that have printed why


def launch(
    command: str, overrides: Sequence[str], num_processes: int, run_dir: Path, environment: dict[str, str]
) -> int:
    """Run a command in one process per device, and wait for all.

    Signals that ask for an end are forwarded, the first Ctrl-C as SIGTERM: a terminal has sent it to all processes, and
    a second one, as here, ends at once. When a process fails, the others are killed after some seconds: they would wait
    for it forever. So are those still running after SIGTERM and the end of one. While none has ended, they may be
    validating or writing a checkpoint, and are waited for, up to a second SIGTERM that comes some seconds later.

    Args:
        command: such as ``train``.
        overrides: its command line.
        num_processes: on this machine.
        run_dir: folder of the run.
        environment: variables in addition to those of this process.

    Returns:
        0, or the exit code of the process that failed first, as a shell reports it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = str(probe.getsockname()[1])
    shared = {**os.environ, **environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}
    shared |= {"WORLD_SIZE": str(num_processes), "NODE_RANK": "0"}
    words = [sys.executable, "-m", "asr.commands", command, *overrides]
    die_with_this = functools.partial(die_with_parent, os.getpid())
    ranks = [
        subprocess.Popen(words, env={**shared, "LOCAL_RANK": str(rank)}, preexec_fn=die_with_this)
        for rank in range(num_processes)
    ]

    forwarded: dict[int, list[float]] = {}

    def forward(received: int, _: object) -> None:
        forwarded.setdefault(received, []).append(time.monotonic())
        for process in ranks:
            process.send_signal(received)  # does nothing to one that has ended

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        forward(signal.SIGTERM, None)
        forwarded[signal.SIGINT] = []

    with restored_handlers((signal.SIGINT, *ENDING)):
        listen(forward)
        listen(interrupt, (signal.SIGINT,))
        try:
            return _wait(ranks, forwarded, run_dir)
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def _wait(ranks: Sequence[subprocess.Popen[bytes]], forwarded: Mapping[int, Sequence[float]], run_dir: Path) -> int:
    """Return the exit code of all processes together.

    Args:
        ranks: the processes.
        forwarded: at which times each signal was passed on to them, in seconds of a monotonic clock.
        run_dir: folder of the run.
    """
    ended_at, is_told = math.inf, False
    while True:
        running = [rank for rank, process in enumerate(ranks) if process.poll() is None]
        if any(process.returncode for process in ranks):
            return _end(ranks, forwarded, run_dir)
        if not running:
            return 0
        now, asked = time.monotonic(), forwarded.get(signal.SIGTERM, ())
        asked_at = asked[0] if asked else math.inf
        if len(running) < len(ranks):
            ended_at = min(ended_at, now)
            if now > max(ended_at, asked_at) + GRACE_S:
                named = f"process{'es' if len(running) > 1 else ''} {', '.join(map(str, running))}"
                why = f"did not end within {GRACE_S:g} s after SIGTERM and the end of others, and had to be killed"
                _say(f"{named} of {len(ranks)} {why}", run_dir)
                return TRY_AGAIN
        elif now > asked_at + GRACE_S and asked[-1] > asked_at + GRACE_S:
            _say(f"{len(ranks)} processes did not end after SIGTERM, and were killed at the next one", run_dir)
            return TRY_AGAIN
        elif now > asked_at + GRACE_S and not is_told:
            is_told, how = True, "Ctrl-C" if signal.SIGINT in forwarded else "SIGTERM"
            print(
                f"asr-train: still waiting for {len(running)} processes to save; {how} once more kills them",
                file=sys.stderr,
            )
        time.sleep(POLL_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]], forwarded: Collection[int], run_dir: Path) -> int:
    """Say which process failed, unless it has said why; before, give the others some seconds to end by themselves.

    Raises:
        Terminated: a forwarded signal has ended them, and no process has said so.
        KeyboardInterrupt: the same, by Ctrl-C.
    """
    deadline = time.monotonic() + GRACE_S
    while any(process.poll() is None for process in ranks) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    codes = [process.returncode for process in ranks]
    passed_on = {-number for number in forwarded}
    # a killed process (negative code) makes others fail, never the other way round; what follows has the largest code
    code = min(code for code in codes if code)
    if signal.SIGINT in forwarded and {*codes} <= {0, None, TRY_AGAIN, INTERRUPTED} | passed_on:
        if codes[0] == TRY_AGAIN:
            return INTERRUPTED  # it has printed what was saved
        raise KeyboardInterrupt
    if {*codes} <= {0, None, TRY_AGAIN} | passed_on:
        if TRY_AGAIN in codes:
            return TRY_AGAIN  # a process that still had work to do has printed how to resume
        raise Terminated(-code, lambda: "")
    if code in SAID:
        return code
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if code == LOST_PEER:
        how = "lost its connection to the others"
    advice = "; the kernel does this when memory runs out: lower data.batch.max_duration_s" * (code == -signal.SIGKILL)
    _say(f"process {codes.index(code)} of {len(ranks)} {how}; the others were ended{advice}", run_dir)
    return 128 - code if code < 0 else code


def _say(what: str, run_dir: Path) -> None:
    print(one_line(f"asr-train: {what}; {how_to_resume(run_dir)}"), file=sys.stderr)
