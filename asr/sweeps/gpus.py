"""Jobs that run at the same time on one machine each get GPUs of their own, or share each with a number of others."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from asr.errors import ConfigError

POLL_S = 0.5
MOST_JOBS = 64  # on a GPU
VARIABLE = "CUDA_VISIBLE_DEVICES"


@contextlib.contextmanager
def claimed_gpus(count: int | None, jobs_per_gpu: int | None = 1) -> Iterator[dict[str, str]]:
    """Wait until this many GPUs are free, and yield an environment in which only they are seen.

    A GPU is free when no other job holds its lock; locks end with the processes that hold them. A job that shares its
    GPUs waits for one that wants them alone, and the other way round.

    Args:
        count: GPUs of a job; None: all that there are, shared with others, or one, if GPUs are shared by a number.
        jobs_per_gpu: how many jobs share a GPU; None: as 1.

    Raises:
        ConfigError: there are not that many, or the jobs on a GPU are no such number.
    """
    shared = 1 if jobs_per_gpu is None else jobs_per_gpu
    if isinstance(shared, bool) or not isinstance(shared, int) or not 1 <= shared <= MOST_JOBS:
        raise ConfigError(f"sweep.jobs_per_gpu must be null, or 1 to {MOST_JOBS} jobs, given {jobs_per_gpu!r}")
    if count is None and shared > 1:
        count = 1
    if count is None:
        yield dict(os.environ)
        return
    names = visible_gpus()
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(names):
        raise ConfigError(
            f"sweep.gpus_per_job must be null, or 1 to the {len(names)} GPUs of this machine, given {count!r}"
        )
    with contextlib.ExitStack() as held:
        claimed = _claim(names, count, shared, held)
        yield {**os.environ, VARIABLE: ",".join(claimed)}


def visible_gpus() -> list[str]:
    """Return the names by which this process may use GPUs."""
    given = os.environ.get(VARIABLE)
    if given is None:
        import torch  # takes seconds, which a sweep that shares its GPUs does not need

        return [str(index) for index in range(torch.cuda.device_count())]
    return [name.strip() for name in given.split(",") if name.strip()]


def _claim(names: list[str], count: int, shared: int, held: contextlib.ExitStack) -> list[str]:
    """Return the GPUs with the fewest jobs; all or none, so that two jobs never wait for each other."""
    while True:
        with contextlib.ExitStack() as attempt:
            claimed: list[str] = []
            for place in range(shared):
                for name in names:
                    if len(claimed) < count and name not in claimed and _locked(name, place, shared > 1, attempt):
                        claimed.append(name)
            if len(claimed) == count:
                held.push(attempt.pop_all())
                return claimed
        time.sleep(POLL_S)


def _locked(name: str, place: int, is_shared: bool, held: contextlib.ExitStack) -> bool:
    """Lock a GPU, and a place on it if it is shared; return whether both were free."""
    # a lock of its own for each place; that of the GPU tells jobs that share it from one that has it alone
    wanted = [(name, fcntl.LOCK_SH), (f"{name}.{place}", fcntl.LOCK_EX)] if is_shared else [(name, fcntl.LOCK_EX)]
    with contextlib.ExitStack() as attempt:
        for file_name, kind in wanted:
            try:
                fcntl.flock(attempt.enter_context(_lock_file(file_name)), kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        held.push(attempt.pop_all())
    return True


def _lock_file(name: str) -> IO[str]:
    folder = Path(tempfile.gettempdir()) / f"werdict-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return open(folder / name.replace("/", "_"), "a")
