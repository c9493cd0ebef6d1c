"""Starts one process per device on this machine, and ends all of them when one dies."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from asr.signals import TRY_AGAIN, Terminated, listen
from asr.subprocesses import die_with_parent

POLL_S = 0.1
GRACE_S = 5.0  # time for the other processes to print why one has died


def launch(command: str, overrides: Sequence[str], num_processes: int, environment: dict[str, str]) -> int:
    """Run a command in one process per device, and wait for all.

    Signals that ask for an end are forwarded. When a process fails, the others are killed after some seconds: they
    would wait for it forever.

    Args:
        command: such as ``train``.
        overrides: its command line.
        num_processes: on this machine.
        environment: variables in addition to those of this process.

    Returns:
        0, or the exit code of the process that failed first, as a shell reports it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = str(probe.getsockname()[1])
    shared = {**os.environ, **environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}
    shared |= {"WORLD_SIZE": str(num_processes), "NODE_RANK": "0"}
    words = [sys.executable, "-m", "asr.cli", command, *overrides]
    die_with_this = functools.partial(die_with_parent, os.getpid())
    ranks = [
        subprocess.Popen(words, env={**shared, "LOCAL_RANK": str(rank)}, preexec_fn=die_with_this)
        for rank in range(num_processes)
    ]

    forwarded: set[int] = set()

    def forward(received: int, _: object) -> None:
        forwarded.add(received)
        for process in ranks:
            process.send_signal(received)  # does nothing to one that has ended

    listen(forward)
    try:
        return _wait(ranks, forwarded)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _wait(ranks: Sequence[subprocess.Popen[bytes]], forwarded: set[int]) -> int:
    while True:
        running = any(process.poll() is None for process in ranks)
        failed = [rank for rank, process in enumerate(ranks) if process.returncode]
        if failed:
            # a killed process (negative code) makes others fail, never the other way round
            return _end(ranks, min(failed, key=lambda rank: ranks[rank].returncode > 0), forwarded)
        if not running:
            return 0
        time.sleep(POLL_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]], failed: int, forwarded: set[int]) -> int:
    """Print which process failed; before, give the others some seconds to end by themselves.

    Raises:
        Terminated: a forwarded signal has ended them, and no process has said so.
    """
    code = ranks[failed].returncode
    deadline = time.monotonic() + GRACE_S
    while any(process.poll() is None for process in ranks) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    codes = {process.returncode for process in ranks}
    passed_on = {-number for number in forwarded}
    if codes <= {0, TRY_AGAIN} | passed_on:
        if TRY_AGAIN in codes:
            return TRY_AGAIN  # a process that still had work to do has printed how to resume
        raise Terminated(-min(codes), lambda: "")
    if codes == {code}:
        return _as_shell(code)  # the processes themselves have printed why
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    print(f"asr-train: process {failed} of {len(ranks)} {how}; the others were ended", file=sys.stderr)
    return _as_shell(code)


def _as_shell(code: int) -> int:
    return 128 - code if code < 0 else code
