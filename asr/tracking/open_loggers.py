"""The time in which loggers record a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from asr.console import PlainConsole

console = PlainConsole()


@contextlib.contextmanager
def open_loggers(loggers: Sequence[Any], update: int) -> Iterator[None]:
    """Let loggers continue after an update; at the end of the block they close, and know whether it has failed.

    Args:
        loggers: of a run.
        update: after which the run is resumed; 0: it is new.
    """
    for logger in loggers:
        if hasattr(logger, "resume"):
            logger.resume(update)
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        for logger in loggers:
            upload = logger.close(exit_code) if hasattr(logger, "close") else None
            if upload:
                console.print_line(f"upload this run: {upload}")
