"""Short names of options and sources, and digests of files, so that changed ones never find stale data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr.console import track
from asr.data.manifests.layouts import SourceOption, parts_of
from asr.data.manifests.shar.folders import TARS
from asr.safe_io import named_path
from asr.text_files import SourceFiles, visible_files

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
