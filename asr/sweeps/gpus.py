"""Jobs that run at the same time on one machine each get GPUs of their own, or share each with a number of others."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from asr.errors import ConfigError

POLL_S = 0.5
VARIABLE = "CUDA_VISIBLE_DEVICES"


@contextlib.contextmanager
def claimed_gpus(count: int | None, jobs_per_gpu: int | None = None) -> Iterator[dict[str, str]]:
    """Wait until this many GPUs are free, and yield an environment in which only they are visible.

    A GPU is free when no other job holds its lock; locks end with the processes that hold them. A job that shares its
    GPUs waits for one that wants them alone, and the other way round.

    Args:
        count: GPUs of a job; None: all that there are, shared with others, or one, if GPUs are shared by a number.
        jobs_per_gpu: how many jobs share a GPU; None: as 1.

    Raises:
        ConfigError: there are not that many GPUs.
    """
    shared = jobs_per_gpu or 1
    if count is None and shared == 1:
        yield dict(os.environ)
        return
    names, num_gpus = visible_gpus(), 1 if count is None else count
    if num_gpus > len(names):
        raise ConfigError(
            f"sweep.gpus_per_job={count} sweep.jobs_per_gpu={jobs_per_gpu}: this machine has {len(names)} GPUs"
        )
    with contextlib.ExitStack() as held:
        yield {**os.environ, VARIABLE: ",".join(_claim(names, num_gpus, shared, held))}


def visible_gpus() -> list[str]:
    """Return the names by which this process may use GPUs."""
    visible = os.environ.get(VARIABLE)
    if visible is None:
        import torch  # takes seconds, which a sweep that shares its GPUs does not need

        return [str(index) for index in range(torch.cuda.device_count())]
    return [name.strip() for name in visible.split(",") if name.strip()]


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
    folder = Path(tempfile.gettempdir()) / f"werdict-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    # each place has its lock; that of the GPU separates jobs that share it from one that has it alone
    locks = [(name, fcntl.LOCK_SH), (f"{name}.{place}", fcntl.LOCK_EX)] if is_shared else [(name, fcntl.LOCK_EX)]
    with contextlib.ExitStack() as attempt:
        for file_name, kind in locks:
            try:
                file = attempt.enter_context(open(folder / file_name.replace("/", "_"), "a"))
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        held.push(attempt.pop_all())
    return True
