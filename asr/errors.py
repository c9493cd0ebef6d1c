"""Errors that end a command with one line: what happened, why, and what to do next."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator

from asr.error_text import first_line, is_out_of_memory, memory_error

# what torch's DataLoader reports about a dead worker, and what the parent sees when it fetches a batch
WORKER_SIGNS = (
    "DataLoader worker (pid",
    "Too many open files",
    "unable to open shared memory object",
    "unable to mmap",
    "received 0 items of ancdata",
)
WORKER_ADVICE = {
    "Killed": "The kernel does this when memory runs out: lower {keys}",
    "shared memory": "Make room in /dev/shm, or lower {keys}",
    "out of memory": "Free some memory, or lower {keys}",
    "bus error": "Make room in /dev/shm, or lower {keys}",
    "": "Raise the limits of the shell (ulimit -n, the number of open files; ulimit -f, the size of a file), make room "
    "in /dev/shm, or lower {keys}",
}
# what gloo, NCCL and torch's store report in a process whose peer has ended
PEER_SIGNS = (
    *("gloo/transport", "remote process exited", "communicator was aborted"),
    *("Connection was likely closed", "Connection reset by peer", "Broken pipe"),
)
TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
DIVERGED = 77  # exit code of a run that its own settings have ended
LOST_PEER = 78  # exit code, larger than that of a process with a reason of its own
WORKER_KEYS = "data.workers.num_workers or .prefetch (num_workers when decoding); num_workers=0 needs no worker"


class ConfigError(ValueError):
    """A configured value that cannot work; the message names the key, what was given and what is allowed."""


class RunFailed(RuntimeError):
    """A command that cannot continue; the message says why, and what to do."""


class WorkerLost(RuntimeError):
    """A worker that reads data could not be started, or its batches cannot be received."""


class UnusableFile(RunFailed):
    """A file that many utterances need is missing, broken or not what it was: they are not left out one by one."""


class PeerLost(RunFailed):
    """Another process of this run has ended; this one does not know why."""


class Diverged(RunFailed):
    """Training cannot continue because losses, gradients or weights are not finite."""


class OutOfMemory(RunFailed):
    """Memory ran out; the message says what did not fit, and how to avoid it."""


@contextlib.contextmanager
def explaining_out_of_memory(explain: Callable[[], str]) -> Iterator[None]:
    """Turn an out-of-memory error into one that says what did not fit; `RunFailed` passes unchanged.

    Args:
        explain: returns where memory ran out and what to do; called only if it did.

    Raises:
        OutOfMemory: memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if isinstance(error, RunFailed) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"out of memory {explain()} ({first_line(error)})") from error


def raise_if_out_of_resources(error: BaseException, place: str) -> None:
    """Raise an error if the machine is why something was not read: nothing is dropped from data that are not broken.

    Args:
        error: why an utterance or file could not be read.
        place: what was read.

    Raises:
        RunFailed: this process lacks memory, or may open no more files; the same data can be read later.
    """
    if isinstance(error, RunFailed):
        # lhotse (1.33) raises what it has caught once more, with the values of all arguments after its text
        while isinstance(inner := error.__cause__ or error.__context__, RunFailed):
            error = inner
        raise error
    if too_many_open_files(error):
        raise RunFailed(
            f"too many open files for {place} to be read; raise the limit of the shell on open files (ulimit -n), then "
            "run the same command again"
        ) from error
    if cause := memory_error(error):
        raise OutOfMemory(
            f"out of memory while reading {place} ({first_line(cause)}); free some memory, or raise its limit "
            "(ulimit -v), then run the same command again"
        ) from error


def too_many_open_files(error: BaseException) -> bool:
    """Return whether an error, or a file that is opened now, says that there are too many; libsndfile does not."""
    try:
        if isinstance(error, OSError):
            raise error
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as found:
        return found.errno in TOO_MANY_FILES
    return False


def remedy(error: OSError) -> str:
    """Return what helps if a file cannot be opened or written."""
    if error.errno in TOO_MANY_FILES:
        return "raise the limit of the shell on open files (ulimit -n)"
    if error.errno == errno.EFBIG:
        return "raise the limit of the shell on the size of files (ulimit -f)"
    return "make room there (df, quota, permissions)"


@contextlib.contextmanager
def explaining_lost_workers() -> Iterator[None]:
    """Turn torch's error about a lost worker into one line.

    Torch raises it in a signal handler, so it may come from any line of the block.

    Raises:
        RunFailed: a worker has ended, or its batches cannot be received.
    """
    try:
        yield
    except RuntimeError as error:
        lost = _worker_error(error)
        if lost is None or isinstance(error, RunFailed):
            raise
        text = str(lost).strip()
        # an error inside a worker comes with its traceback; the last line is the message
        cause = text.splitlines()[-1 if text.startswith("Caught") else 0].split(". ")[0].rstrip(". ")
        advice = next(advice for sign, advice in WORKER_ADVICE.items() if sign in text)
        raise RunFailed(
            f"a worker that reads data was lost: {cause}. {advice.format(keys=WORKER_KEYS)}. A run can be resumed"
        ) from error


@contextlib.contextmanager
def explaining_lost_peers() -> Iterator[None]:
    """Turn an error about the connection to another process of a run into one line: it is the end of that one.

    Raises:
        PeerLost: the connection was lost, and nothing else was wrong here before.
    """
    try:
        yield
    except RuntimeError as error:
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        if not isinstance(first, RuntimeError) or not any(sign in str(first) for sign in PEER_SIGNS):
            raise
        raise PeerLost(
            "the connection to another process of this run was lost: it has ended, and has printed why unless it was "
            "killed, or its machine is gone"
        ) from error


def silence_freed_workers() -> None:
    """Print no traceback when torch notices a lost worker while it frees other workers.

    Torch raises that error in a signal handler, and so in finalizers too: Python prints it there, and nobody can catch
    it. The code that waits for the lost worker gets the same error.
    """
    printed = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if _worker_error(unraisable.exc_value) is None:
            printed(unraisable)

    sys.unraisablehook = hook


def _worker_error(error: BaseException | None) -> BaseException | None:
    """Return the first error about a worker in a chain: later ones, of torch or of the trainer, say less."""
    first = None
    while error is not None:
        known = isinstance(error, RuntimeError) and any(sign in str(error) for sign in WORKER_SIGNS)
        if known or isinstance(error, WorkerLost):
            first = error
        error = error.__context__
    return first
