"""Bounds of time and memory for work whose size a config decides: resolving its references, matching its patterns."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from asr.cli.errors import ConfigError

MAX_CPU_S = 3  # what is bounded takes milliseconds


class _Exceeded(BaseException):
    """No ``Exception``, which a library would catch and wrap."""


@contextlib.contextmanager
def bounded(message: str, max_bytes: int | None = None) -> Iterator[None]:
    """Refuse work that takes more than some seconds of this process, or more memory than is given.

    Python looks for signals between its instructions, and while its regular expressions search.

    Args:
        message: of the error.
        max_bytes: memory that the work may take; None: any.

    Raises:
        ConfigError: the bound is exceeded.
    """
    # signals reach the main thread alone
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _Exceeded

    handler = signal.signal(signal.SIGVTALRM, stop)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    # CPU time, because the machine may be busy; again each second, because exceptions in a finalizer are lost
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S, 1)
    if max_bytes is not None:
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit = in_use + max_bytes if limits[0] == resource.RLIM_INFINITY else min(limits[0], in_use + max_bytes)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limits[1]))
    try:
        yield
    except _Exceeded:
        raise ConfigError(message) from None
    except Exception as error:
        # OmegaConf (2.3) replaces any error by its own, which has the name of the first in its text
        if isinstance(error, MemoryError) or "MemoryError" in str(error):
            raise ConfigError(message) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGVTALRM, handler)
