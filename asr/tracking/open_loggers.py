"""Opens and closes the loggers of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from asr.console import console


@contextlib.contextmanager
def open_loggers(loggers: Sequence[Any], update: int) -> Iterator[None]:
    """Let loggers continue after an update, 0 for a new run; close them at the end, as failed after an exception."""
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
