"""Names of prepared data: fingerprints of what they are made of, and paths that may move with them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from asr.data.manifests.lhotse_manifests import TARS
from asr.data.manifests.tables import SourceOption, parts_of
from werdict.console import track
from werdict.files import named_path
from werdict.text_files import SourceFiles, visible_files

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


MAX_HASHED_BYTES = 2**28


def fingerprint(value: Any) -> str:
    """Return ten hexadecimal digits that depend on a JSON-able value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    # file names need not be UTF-8; Python decodes other bytes to lone surrogates
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:10]


def describe_source(source: SourceOption | None, source_files: SourceFiles = visible_files) -> Any:
    """Return hashes of the files of a source that are read.

    Args:
        source: a file or a folder, or several with their splits.
        source_files: folder → its files that are read.

    Raises:
        ValueError: a path does not exist.
    """
    if source is None:
        return None
    if isinstance(source, str):
        return _describe_path(named_path(source), source_files)
    return [[part.split, _describe_path(part.path, source_files)] for part in parts_of(source)]


def _describe_path(path: Path, source_files: SourceFiles) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"data.source: there is no file or folder {str(path)!r}; give an existing path")
    if not path.is_dir():
        return {"name": path.name, **_content(path)}
    files = sorted({file for file in source_files(path) if file.is_file()})
    tracked = track(files, f"reading {path}", transient=True)
    return {"folder": fingerprint([(str(file.relative_to(path)), _content(file)) for file in tracked])}


def _content(path: Path) -> dict[str, Any]:
    status = path.stat()
    # hashing large archives, or thousands of shards, would delay every start of a run
    if status.st_size > MAX_HASHED_BYTES or any(tar.fullmatch(path.name) for tar in TARS.values()):
        return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    return {"sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def refuse_changed(path: Path, written: Mapping[str, Any], index: str) -> None:
    """Refuse a file that is not as it was described.

    Args:
        path: of the file.
        written: what `describe_file` returned then.
        index: the file that says so, for messages.

    Raises:
        ValueError: it is missing or has changed.
    """
    # the size first, because the digest takes reading the whole file
    whole = path.is_file() and path.stat().st_size == written["bytes"] and _sha256(path) == written["sha256"]
    if not whole:
        raise ValueError(f"{path} is missing, or differs from what {index} recorded")
