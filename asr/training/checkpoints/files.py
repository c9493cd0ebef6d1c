"""The files of ``checkpoints/``: names, and writes that leave the old file or the new one, never a part of it."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from asr.errors import RunFailed, remedy
from asr.run_folder import newest_update, resume_command, update_files
from asr.safe_io import TEMPORARY, WITHOUT_LINKS, replace_by, sync, write_more


def update_file(folder: Path, update: int) -> Path:
    """Return the path of the checkpoint after an update."""
    return folder / f"update-{update:06d}.ckpt"


def write(state: Any, path: Path) -> None:
    """Write plain data and tensors to a file, and wait until they are on the disk.

    Raises:
        OSError: the disk is full, or writing is not allowed; an existing file is unchanged.
    """

    def save(temporary: Path) -> None:
        try:
            torch.save(state, temporary)
        except RuntimeError:
            # torch (2.13) reports a full disk as "PytorchStreamWriter failed"; the system says why
            write_more(temporary)
            raise
        sync(temporary)

    replace_by(path, save)


def point_link(link: Path, target: Path) -> None:
    """Point a symbolic link at a file of the same folder; where the file system has no links, make a copy."""
    try:
        replace_by(link, lambda temporary: temporary.symlink_to(target.name))
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        duplicate(target, link)


def duplicate(source: Path, path: Path) -> None:
    """Make ``path`` a hard link to a file, or a copy if the file system has no hard links."""

    def make(temporary: Path) -> None:
        try:
            temporary.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, temporary)
            sync(temporary)

    replace_by(path, make)


def remove_temporary(folder: Path) -> None:
    """Remove what a process left that was killed while it wrote."""
    for path in folder.glob(f"*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def prune_checkpoints(folder: Path, newest: int, keep: int) -> None:
    """Keep the ``keep`` newest checkpoints up to an update; remove older ones, and later ones that were abandoned."""
    # best.ckpt is a hard link or a copy: it stays when its update is removed
    files = update_files(folder)
    to_keep = [update for update in files if update <= newest][:keep]
    for update, path in files.items():
        if update not in to_keep:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def explaining_failed_writes(run_dir: Path) -> Iterator[None]:
    """Say which file of a run could not be written, why, and from where the run can be resumed.

    Raises:
        RunFailed: the disk is full, a quota is used up, writing is not allowed, or the run's folder is gone.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT and not (run_dir / "config.yaml").is_file():
            raise RunFailed(
                f"{run_dir}, the folder of this run, was removed or renamed while in use, so nothing can be written to "
                "it; if it was renamed, rename it back, or start a new run"
            ) from error
        raise RunFailed(
            f"{error.filename or run_dir} could not be written: {error.strerror or error}; {remedy(error)}, "
            f"then {how_to_resume(run_dir)}"
        ) from error


def how_to_resume(run_dir: Path) -> str:
    """Return the command that resumes a run, and from where it does."""
    newest = newest_update(run_dir / "checkpoints")
    where = f"continues from update {newest}" if newest is not None else "starts again: it has no checkpoint yet"
    return f"{resume_command(run_dir)} {where}"
