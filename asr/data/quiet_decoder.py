"""Keeps what libsndfile's decoder of MP3 prints off standard error.

soundfile seeks after everything that it reads, and libmpg123 (of libsndfile 1.2.2) then prints an error for each frame
that it decodes without those before it, and discards.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_users, _standard_error = 0, -1


@contextlib.contextmanager
def quiet_decoder(audio: object) -> Iterator[None]:
    """Send standard error nowhere, also that of libraries, while any thread reads MP3.

    Args:
        audio: what is read: the path of a file, or anything else that may hold MP3.
    """
    is_other = isinstance(audio, str | os.PathLike) and not os.fspath(audio).lower().endswith(".mp3")
    if is_other or sys.__stderr__ is None:  # where it was closed, its number may be another file's
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _users, _standard_error
    with _lock:
        if not _users:
            _standard_error = os.dup(2)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)
        _users += 1


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if not _users:
            os.dup2(_standard_error, 2)
            os.close(_standard_error)
