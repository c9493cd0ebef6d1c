"""What a command starts itself, a job of a sweep or a rank, taken from processes that were forked before it began.

They are its children, in its process group, as those that it would start; a new interpreter would take seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from asr.processes import die_with_parent

_waiting: list[tuple[int, int]] = []  # process id, and the descriptor that its command is written to


def fork_spares(num: int, be: Callable[[str, Sequence[str]], NoReturn]) -> None:
    """Fork processes that wait for a command, and let ``subprocess`` use them.

    Args:
        num: of processes; what is started after them gets an interpreter of its own.
        be: runs a command with words, and ends the process.
    """
    parent = os.getpid()
    for _ in range(num):
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(writer)
            die_with_parent(parent)
            handler = signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it without a word while it waits
            with os.fdopen(reader) as file:
                job = json.loads(file.readline())
            signal.signal(signal.SIGINT, handler)
            if job["start_new_session"]:
                os.setsid()
            os.environ.clear()
            os.environ.update(job["environment"])
            if "LOCAL_RANK" in os.environ:  # /proc shows the environment of the first program of a process alone
                Path("/proc/self/comm").write_text(f"rank {os.environ['LOCAL_RANK']}")
            be(job["words"][0], job["words"][1:])
        os.close(reader)
        _waiting.append((process, writer))
    if num:
        subprocess.Popen = subprocess_handler.Popen = _Spare  # type: ignore[misc]


class _Spare(subprocess.Popen):
    def _execute_child(self, args: Any, *others: Any) -> None:
        if not _waiting or list(args[1:3]) != ["-m", "asr.commands"]:
            super()._execute_child(args, *others)
            return
        # as subprocess (3.11) passes them on
        environment, start_new_session = others[5], others[-2]
        self.pid, writer = _waiting.pop(0)
        self._child_created = True
        with os.fdopen(writer, "w") as file:
            job = {"words": args[3:], "environment": environment, "start_new_session": start_new_session}
            print(json.dumps(job), file=file)
