"""Worker processes that read data and end, or cannot be reached: why, as far as it is known, and what to do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from asr.data.loading.loader import WorkerLost
from asr.training.errors import TrainingFailed

# what torch's DataLoader says of a worker that has ended, and what the parent meets when it fetches a batch
SIGNS = (
    "DataLoader worker (pid",
    "Too many open files",
    "unable to open shared memory object",
    "unable to mmap",
    "received 0 items of ancdata",
)
ADVICE = {
    "Killed": "The kernel kills so when memory runs out: lower {keys}",
    "shared memory": "Make room in /dev/shm, or lower {keys}",
    "bus error": "Make room in /dev/shm, or lower {keys}",
    "": "Raise the limits of the shell (ulimit -n, the number of open files), make room in /dev/shm, or lower {keys}",
}
KEYS = "data.workers.num_workers or data.workers.prefetch (num_workers when decoding); num_workers=0 needs no worker"


def hush_freed_workers() -> None:
    """Print no traceback, from now on, where torch notices a lost worker while it frees others.

    It raises in a signal handler, and so in a finaliser too, whose errors Python prints and nobody can catch. Who
    waits for the lost worker is told as well.
    """
    printed = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if _lost(unraisable.exc_value) is None:
            printed(unraisable)

    sys.unraisablehook = hook


@contextlib.contextmanager
def explaining_lost_workers() -> Iterator[None]:
    """Turn torch's error about a worker into one line.

    Torch raises it in a signal handler, so that it may come from any line of the training.

    Raises:
        TrainingFailed: a worker has ended, or what it sends cannot be received.
    """
    try:
        yield
    except RuntimeError as error:
        lost = _lost(error)
        if lost is None or isinstance(error, TrainingFailed):
            raise
        text = str(lost).strip()
        # an error inside a worker comes with its traceback, which ends with what it says
        cause = text.splitlines()[-1 if text.startswith("Caught") else 0].split(". ")[0].rstrip(". ")
        advice = next(advice for sign, advice in ADVICE.items() if sign in text)
        raise TrainingFailed(
            f"a worker that reads data was lost: {cause}. {advice.format(keys=KEYS)}. A run can be resumed"
        ) from error


def _lost(error: BaseException | None) -> BaseException | None:
    """Find the first error about a worker: torch's later ones, and those of a trainer that ends by it, know less."""
    first = None
    while error is not None:
        if isinstance(error, WorkerLost) or (isinstance(error, RuntimeError) and any(s in str(error) for s in SIGNS)):
            first = error
        error = error.__context__
    return first
