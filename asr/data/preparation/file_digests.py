"""Sizes and digests of files, by which changed ones are noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def describe_file(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def refuse_changed(path: Path, written: Any, index: str) -> None:
    """Refuse a file that is not as it was described.

    Args:
        path: of the file.
        written: what `describe_file` returned then.
        index: the file that says so, for messages.

    Raises:
        ValueError: it is missing or has changed.
    """
    if not isinstance(written, Mapping):
        raise ValueError(f"{index} holds no digest of {path.name}")
    if not path.is_file():
        raise ValueError(f"{path.name} is missing, or is no file")
    size = path.stat().st_size
    # before the digest, which reads the whole file
    if size != written.get("bytes"):
        raise ValueError(f"{path.name} has {size} bytes, {written.get('bytes')!r:.20} were written")
    if describe_file(path)["sha256"] != written.get("sha256"):
        raise ValueError(f"{path.name} is not as it was written: its SHA-256 differs")
