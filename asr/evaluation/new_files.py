"""Files that appear complete or not at all, and never in the place of another."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def refuse_existing(path: Path) -> None:
    """Say so if there is anything at ``path``, be it a link that leads nowhere.

    Raises:
        FileExistsError: there is.
    """
    if os.path.lexists(path):
        raise FileExistsError(
            f"{path} exists and reports are never overwritten; remove the old report or give another output folder"
        )


def write_new(path: Path, content: str | bytes) -> None:
    """Write a file in a folder that exists; text as UTF-8.

    Raises:
        FileExistsError: there is one already; it stays as it is.
    """
    data = content if isinstance(content, bytes) else content.encode()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(data)
        _move_to_new(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _move_to_new(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename it never replaces a file that another process has just written
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError:  # a file system without hard links
        refuse_existing(path)
        temporary.rename(path)
