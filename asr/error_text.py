"""What errors of Python and of libraries say, and how ours name things; no torch: its import may be what fails."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

MAX_CHARACTERS = 300
MORE_MEMORY = "free some memory, or raise its limit (ulimit -v), then run the same command again, or resume=RUN"

# messages if memory cannot be allocated: from torch, oneDNN, C++, Python's threads, and the loader of libraries
OUT_OF_MEMORY = (
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "ALLOC_FAILED",
    "bad_alloc",
    "could not create a primitive",
    "can't start new thread",
    "malloc () failed",  # of libsndfile
    "failed to map segment from shared object",
    "error return without exception set",  # of Python itself, where no error could be made
)


def text_of(error: BaseException) -> str:
    """Return the text of an error, even of one whose `str` fails.

    lhotse builds errors again with a longer text; soundfile's expects a number there and then cannot be printed.
    """
    try:
        return str(error)
    except Exception:
        return " ".join(str(part) for part in error.args).strip()


def first_line(error: BaseException, max_characters: int = MAX_CHARACTERS) -> str:
    """Return the first line of an error, or its type if it has no text; some messages have many lines.

    A longer line ends after a whole word, with an ellipsis.
    """
    line = (text_of(error).strip() or type(error).__name__).splitlines()[0]
    if len(line) <= max_characters:
        return line
    return (line[:max_characters].rpartition(" ")[0] or line[:max_characters]) + " …"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out in this process; a loader's worker reports its own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = text_of(error)
    if not isinstance(error, RuntimeError | ImportError | OSError | SystemError) or "DataLoader worker" in text:
        return False
    return any(sign in text for sign in OUT_OF_MEMORY)


def memory_error(error: BaseException | None) -> BaseException | None:
    """Return the error that says that memory ran out: this one, one that led to it, or None.

    lhotse fails to build numpy's error again, and raises a TypeError about that.
    """
    while error is not None and not is_out_of_memory(error):
        error = error.__cause__ or error.__context__
    return error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'lr'?``, or an empty text if no known word is similar."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def shortened(path: Path) -> str:
    """Return the quoted name of a file or folder for a message, without the middle of a long one."""
    text = str(path)
    return repr(text if len(text) <= 100 else f"{text[:60]}…{text[-30:]}")
