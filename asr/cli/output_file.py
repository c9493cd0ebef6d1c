"""What ``output=`` and ``output_dir=`` name: checked before any work, written whole or not, never overwritten."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from asr.cli.errors import ConfigError, shortened
from asr.errors import RunFailed, remedy
from asr.safe_io import locked_folder, named_path, new_folder, write_new


def new_file(output: object, otherwise: str = "", what: str = "file") -> Path:
    """Return the file, or the folder, to write, after checks that it can be created.

    Args:
        output: as the user names it.
        otherwise: what may be done instead of naming a file.
        what: ``file`` or ``folder``.

    Raises:
        ConfigError: it exists, or cannot be created.
    """
    path = named_path(output)
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(f"output: {str(path)!r} is no {what}; name one{otherwise}")
        if os.path.lexists(path):
            raise ConfigError(f"output: {str(path)!r} exists; name another {what}, or remove it")
        with contextlib.suppress(FileNotFoundError):
            path.lstat()  # fails if the name is too long, or below a file
        _try_folder(path.parent)
    except OSError as error:
        raise ConfigError(
            f"output: {shortened(path)} cannot be created: {error.strerror}; name another {what}"
        ) from None
    return path


@contextlib.contextmanager
def lock_output_dir(folder: Path) -> Iterator[None]:
    """Let no other process write to ``output_dir``, which is created; what stays empty is removed at the end.

    Raises:
        ConfigError: another process writes its results to it.
    """
    is_new = not folder.exists()
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


def _try_folder(folder: Path) -> None:
    """Create a folder, and remove it again: what is refused later leaves nothing."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        one.rmdir()


def write_output(path: Path, content: bytes | Iterable[bytes], again: str) -> None:
    """Write the file.

    Args:
        path: of the file.
        content: of the file, or its parts in order.
        again: what to do if the disk is full.

    Raises:
        ConfigError: another program has created the file.
        RunFailed: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, content)
    except FileExistsError:
        raise ConfigError(f"output: {str(path)!r} was created by another program; name another file") from None
    except OSError as error:
        raise _unwritten(path, error, "file", again) from error


@contextlib.contextmanager
def output_folder(path: Path, again: str) -> Iterator[Path]:
    """Yield a temporary folder, which becomes the folder to write at the end of the block, or is removed if that fails.

    Args:
        path: of the folder.
        again: what to do if the disk is full.

    Raises:
        ConfigError: another program has created the folder.
        RunFailed: it, or a file in it, cannot be written; other errors of the block pass unchanged.
    """
    folder = path.parent
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(path) as folder:
            yield folder
    except FileExistsError:
        raise ConfigError(f"output: {str(path)!r} was created by another program; name another folder") from None
    except OSError as error:
        if error.filename is None or not Path(str(error.filename)).is_relative_to(folder):
            raise
        raise _unwritten(path, error, "folder", again) from error


def _unwritten(path: Path, error: OSError, what: str, again: str) -> RunFailed:
    return RunFailed(
        f"output: {shortened(path)} could not be written: {error.strerror}; no part of it was left; {remedy(error)}, "
        f"or name a {what} elsewhere, and {again}"
    )
