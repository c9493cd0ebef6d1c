"""The files of ``checkpoints/``: their names, and writing that leaves an old or a new file, never half of one."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from asr.safe_io import TEMPORARY, replace_by, sync

UPDATE_FILE = re.compile(r"update-(\d+)\.ckpt")


def update_file(folder: Path, update: int) -> Path:
    """Return the name of the checkpoint behind an update."""
    return folder / f"update-{update:06d}.ckpt"


def update_files(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a folder by their update, the newest first; they may be damaged."""
    found = {int(match[1]): path for path in folder.glob("update-*") if (match := UPDATE_FILE.fullmatch(path.name))}
    return dict(sorted(found.items(), reverse=True))


def newest_update(folder: Path) -> int | None:
    """Return the update that ``last.ckpt`` leads to, else the newest that there is; None: there is none."""
    last = UPDATE_FILE.fullmatch((folder / "last.ckpt").resolve().name)
    return int(last[1]) if last else next(iter(update_files(folder)), None)


def write(state: Any, path: Path) -> None:
    """Write plain data and tensors to a file.

    Raises:
        OSError: there is no room, or it is not allowed; what was there before is as it was.
    """

    def save(temporary: Path) -> None:
        try:
            torch.save(state, temporary)
        except RuntimeError:
            # torch does not tell why it could not write
            _write_more(temporary)
            raise
        sync(temporary)

    replace_by(path, save)


def _write_more(path: Path) -> None:
    """Write to the end of a file until that fails, or until as much is written as torch holds back."""
    with path.open("ab", buffering=0) as file:
        for _ in range(64):
            file.write(bytes(2**16))
        os.fsync(file.fileno())


def lead_to(link: Path, target: Path) -> None:
    """Let a symbolic link lead to a file of its own folder."""
    replace_by(link, lambda temporary: temporary.symlink_to(target.name))


def duplicate(source: Path, path: Path) -> None:
    """Let ``path`` be a second name of a file, or a copy where the file system has no hard links."""

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


def remove_all_but(folder: Path, newest: int, keep: int) -> None:
    """Remove the checkpoints older than the ``keep`` newest, and those of a future that training has gone back from."""
    files = update_files(folder)
    kept = [update for update in files if update <= newest][:keep]
    for update, path in files.items():
        if update not in kept:
            path.unlink(missing_ok=True)


class DurableFiles(TorchCheckpointIO):
    """Lightning's way to files; its own writing goes through ``/tmp``, from where moving is copying."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint; called on the first process."""
        write(checkpoint, Path(path))
