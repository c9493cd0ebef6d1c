"""Errors that a training ends with, and whose message is all that a user needs."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from asr.training.checkpoint_files import newest_update


class TrainingFailed(RuntimeError):
    """A training that cannot go on; the message says why, and what to do."""


@contextlib.contextmanager
def explaining_failed_writes(run_dir: Path) -> Iterator[None]:
    """Say what could not be written of a run, why, and what is left of it.

    Raises:
        TrainingFailed: the disk is full, a quota is used up, writing is not allowed, or the run's folder is gone.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT and not (run_dir / "config.yaml").is_file():
            raise TrainingFailed(
                f"{run_dir}, the folder of this run, was removed or renamed while it was in use, and nothing can be "
                "written to it; give a folder that was renamed its name back, or start a new run"
            ) from error
        newest = newest_update(run_dir / "checkpoints")
        left = (
            f"continues from update {newest}" if newest is not None else "begins again: no checkpoint was written yet"
        )
        raise TrainingFailed(
            f"{error.filename or run_dir} could not be written: {error.strerror or error}; make room there (df, quota, "
            f"permissions), then asr-train resume={run_dir} {left}"
        ) from error
