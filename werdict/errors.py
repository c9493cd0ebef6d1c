"""Errors that end a command with one line: what happened, why, and what to do next; and what errors of others say.

Imports no torch, whose import may be what fails.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
from collections.abc import Callable, Iterable, Iterator

MAX_CHARACTERS = 300
MORE_MEMORY = "free some memory, or raise its limit (ulimit -v), then run the same command again, or resume=RUN"
# what torch (2.13) and libraries in C++ say of memory without a type of error for it, in lower case: "can't allocate
# memory", "std::bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA driver error: out of memory"
OUT_OF_MEMORY = ("alloc", "out of memory")
TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
DIVERGED = 77  # exit code of a run that its own settings have ended
LOST_PEER = 78  # exit code, larger than that of a process with a reason of its own


class ConfigError(ValueError):
    """A configured value that cannot work; the message names the key, what was given and what is allowed."""


class RunFailed(RuntimeError):
    """A command that cannot continue; the message says why, and what to do."""


class UnusableFile(RunFailed):
    """A file that many utterances need is missing, broken or not what it was: they are not left out one by one."""


class PeerLost(RunFailed):
    """Another process of this run has ended; this one does not know why."""


class Diverged(RunFailed):
    """Training cannot continue because losses, gradients or weights are not finite."""


class OutOfMemory(RunFailed):
    """Memory ran out; the message says what did not fit, and how to avoid it."""


@contextlib.contextmanager
def naming_place(place: object) -> Iterator[None]:
    """Say in front of what is wrong to which option, or file, it belongs.

    Raises:
        ConfigError: in the place of a ValueError.
    """
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from error


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


# what options of other programs are called here
NAMES = {
    **{"batch_size": "batch.max_duration_s", "learning_rate": "lr", "epochs": "max_epochs", "num_epochs": "max_epochs"},
    **{"gpus": "devices", "num_gpus": "devices", "steps": "max_steps", "num_steps": "max_steps"},
    "capture": "cuda_graphs",
}


def raise_if_out_of_resources(error: BaseException, place: str, more_memory: str = MORE_MEMORY) -> None:
    """Raise an error if the machine is why something was not read: nothing is dropped from data that are not broken.

    Args:
        error: why an utterance or file could not be read.
        place: what was read.
        more_memory: what to do if memory ran out.

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
        raise OutOfMemory(f"out of memory while reading {place} ({first_line(cause)}); {more_memory}") from error


def too_many_open_files(error: BaseException) -> bool:
    """Return whether an error, or a file that is opened now, says that there are too many; libsndfile does not."""
    try:
        if isinstance(error, OSError):
            raise error
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as raised:
        return raised.errno in TOO_MANY_FILES
    return False


def remedy(error: OSError) -> str:
    """Return what helps if a file cannot be opened or written."""
    if error.errno in TOO_MANY_FILES:
        return "raise the limit of the shell on open files (ulimit -n)"
    if error.errno == errno.EFBIG:
        return "raise the limit of the shell on the size of files (ulimit -f)"
    return "make room there (df, quota, permissions)"


def text_of(error: BaseException) -> str:
    """Return the text of an error, even of one whose `str` fails.

    lhotse builds errors again with a longer text; soundfile's expects a number there and then cannot be printed.
    """
    try:
        return str(error)
    except Exception:
        return " ".join(str(part) for part in error.args).strip()


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its type if it has no text; some messages have many lines.

    A longer line ends after a whole word, with an ellipsis.
    """
    line = (text_of(error).strip() or type(error).__name__).splitlines()[0]
    if len(line) <= MAX_CHARACTERS:
        return line
    return (line[:MAX_CHARACTERS].rpartition(" ")[0] or line[:MAX_CHARACTERS]) + " …"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out in this process."""
    if isinstance(error, RunFailed):
        return isinstance(error, OutOfMemory)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # of torch
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ENOMEM
    text = text_of(error).lower() if isinstance(error, RuntimeError | ImportError | OSError) else ""
    return any(part in text for part in OUT_OF_MEMORY)


def memory_error(error: BaseException | None) -> BaseException | None:
    """Return the error that says that memory ran out: this one, one that led to it, or None.

    lhotse fails to build numpy's error again, and raises a TypeError about that.
    """
    while error is not None and not is_out_of_memory(error):
        error = error.__cause__ or error.__context__
    return error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'lr'?``, or an empty text if no known word is similar."""
    near = difflib.get_close_matches(NAMES.get(word, word), list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
