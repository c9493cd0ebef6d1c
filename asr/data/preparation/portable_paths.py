"""Paths in prepared data, which stay right when folders are moved or copied.

Prepared data, and what is downloaded, unpacked, synthesized or computed for them, lie in ``data.dir``. What moves
together is the current folder if ``data.dir`` is in it (a project), else ``data.dir`` alone. A file of prepared data
names what lies there by a path that starts from the folder of that file; it names everything else by an absolute path.
So ``mv project elsewhere`` takes data and audio along, ``cp -r data other/data`` takes along all that was made below
``data``, and a corpus outside is found from everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

Plain = dict[str, Any]


def portable_path(path: str, folder: Path, data_dir: Path) -> str:
    """Return how a file in ``folder`` names a path, which starts from the current folder if it is relative."""
    parent, name = os.path.split(path)
    return os.path.join(portable_folder(parent, folder, data_dir), name)


def portable_folder(path: str, folder: Path, data_dir: Path) -> str:
    """Return how a file in ``folder`` names the path of another folder."""
    return _portable_folder(path, folder, data_dir, os.getcwd())


def absolute_path(path: str, folder: Path) -> str:
    """Return what a file in ``folder`` means by a path."""
    parent, name = os.path.split(path)
    return os.path.join(os.path.normpath(os.path.join(folder, parent)), name)


def with_portable_paths(item: Plain, folder: Path, data_dir: Path) -> Plain:
    """Return a cut, recording or features as plain data for a file in ``folder``; changes what it is given."""
    for named, key in _paths(item):
        portable = portable_path if key == "source" else portable_folder
        named[key] = portable(named[key], folder, data_dir)
    return item


def with_absolute_paths(item: Plain, folder: Path) -> Plain:
    """Return what is read from a file in ``folder`` with absolute paths; changes what it is given."""
    for named, key in _paths(item):
        named[key] = absolute_path(named[key], folder)
    return item


# audio lies in few folders, and a corpus has millions of files
@lru_cache(maxsize=1000)
def _portable_folder(path: str, folder: Path, data_dir: Path, current: str) -> str:
    path = os.path.join(current, path)  # Shar folders may be given by a relative path
    moved = Path(current) if current != os.sep and data_dir.is_relative_to(current) else data_dir
    return os.path.relpath(path, folder) if Path(path).is_relative_to(moved) else path


def _paths(item: Plain) -> Iterator[tuple[Plain, str]]:
    """Yield each mapping that names a file, and the key of its path."""
    for part in (item, item.get("recording"), item.get("features")):
        if part:
            yield from ((source, "source") for source in part.get("sources", ()))
            if "storage_path" in part:
                yield part, "storage_path"
            for transform in part.get("transforms") or ():
                if impulse_response := transform["kwargs"].get("rir"):
                    yield from _paths(impulse_response)
