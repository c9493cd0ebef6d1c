"""Jobs that run at the same time on one machine each get GPUs of their own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from asr.cli.errors import ConfigError
from asr.safe_io import open_inside

POLL_S = 0.5
VARIABLE = "CUDA_VISIBLE_DEVICES"


@contextlib.contextmanager
def claimed_gpus(count: int | None) -> Iterator[dict[str, str]]:
    """Wait until so many GPUs are free, and yield an environment in which only they are seen.

    A GPU is free when no other job holds its lock; locks end with the processes that hold them.

    Args:
        count: GPUs of a job; None: all that there are, shared with others.

    Raises:
        ConfigError: there are not that many.
    """
    if count is None:
        yield dict(os.environ)
        return
    names = visible_gpus()
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(names):
        raise ConfigError(
            f"sweep.gpus_per_job must be null, or 1 to the {len(names)} GPUs of this machine, given {count!r}"
        )
    with contextlib.ExitStack() as held:
        claimed = _claim(names, count, held)
        yield {**os.environ, VARIABLE: ",".join(claimed)}


def visible_gpus() -> list[str]:
    """Return the names by which this process may use GPUs."""
    given = os.environ.get(VARIABLE)
    if given is None:
        import torch  # takes seconds, which a sweep that shares its GPUs does not need

        return [str(index) for index in range(torch.cuda.device_count())]
    return [name.strip() for name in given.split(",") if name.strip()]


def _claim(names: list[str], count: int, held: contextlib.ExitStack) -> list[str]:
    """Return the first free ones; all or none, so that two jobs never wait for each other."""
    while True:
        with contextlib.ExitStack() as attempt:
            claimed: list[str] = []
            for name in names:
                file = attempt.enter_context(_lock_file(name))
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    claimed.append(name)
                if len(claimed) == count:
                    held.push(attempt.pop_all())
                    return claimed
        time.sleep(POLL_S)


def _lock_file(name: str) -> IO[str]:
    folder = Path(tempfile.gettempdir()) / f"werdict-gpus-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    # anybody may have made it before, in a folder that all can write to
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError(
            f"sweep.gpus_per_job: {folder}, where GPUs are claimed, is not a folder of yours alone; remove it, or let "
            "TMPDIR name another folder for temporary files"
        )
    return open_inside(folder / name.replace("/", "_"), "a")
