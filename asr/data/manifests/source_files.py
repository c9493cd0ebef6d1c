"""Files of a source folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Prepare = TypeVar("Prepare", bound=Callable[..., Any])
SourceFiles = Callable[[Path], Iterable[Path]]


def reads(source_files: SourceFiles) -> Callable[[Prepare], Prepare]:
    """Declare which files of a source folder a prepare function reads; other files do not change its fingerprint.

    Args:
        source_files: folder → the files below it.
    """

    def declare(prepare: Prepare) -> Prepare:
        prepare.source_files = source_files  # type: ignore[attr-defined]
        return prepare

    return declare


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder that are not hidden, without following links to folders."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))
