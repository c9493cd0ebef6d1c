"""Options of several commands: ``output=`` and ``output_dir=``, never overwritten, and lists."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from omegaconf import ListConfig

from asr.errors import ConfigError
from asr.run_folder import usable_folder
from asr.safe_io import locked_folder, named_path


def new_file(output: object, kind: str = "file") -> Path:
    """Return the file, or the folder, to write, after checks that it can be created.

    Args:
        output: as the user names it.
        kind: ``file`` or ``folder``.

    Raises:
        ValueError: it exists, or cannot be created.
        OSError: its name is impossible.
    """
    path = named_path(output)
    if os.path.lexists(path):
        raise ConfigError(f"output: {str(path)!r} exists; name another {kind}, or remove it")
    with contextlib.suppress(FileNotFoundError):
        path.lstat()  # fails if the name is too long, or below a file
    usable_folder(path.parent, "output")
    return path


@contextlib.contextmanager
def lock_output_dir(folder: Path, is_new: bool) -> Iterator[None]:
    """Let no other process write to ``output_dir``, which is created; a new one that stays empty is removed at the end.

    Raises:
        ConfigError: another process writes its results to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked_folder(folder, wait=False))
        except BlockingIOError:
            raise ConfigError(
                f"output_dir: another process writes its results to {folder}; name another folder, or wait for it"
            ) from None
        try:
            yield
        finally:
            if is_new:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def texts(value: object) -> list[str]:
    """Return a list that may be given as one of its items."""
    return [str(item) for item in value] if isinstance(value, ListConfig | list) else [str(value)]
