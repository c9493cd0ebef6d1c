"""Short names for what data was made from, so that changed options or sources never meet stale data."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MAX_HASHED_BYTES = 2**28


def fingerprint(value: Any) -> str:
    """Return ten hexadecimal digits that depend on a JSON-able value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    # names of files that are no UTF-8 hold lone surrogates
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:10]


def describe_source(source: str | None) -> dict[str, Any] | None:
    """Return what identifies the content of a source: a file's hash, a folder's names and sizes.

    Raises:
        ValueError: there is nothing at that path.
    """
    if source is None:
        return None
    path = Path(source).expanduser()
    if not path.exists():
        raise ValueError(f"data.source: there is no file or folder {str(path)!r}; give an existing path")
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {"folder": fingerprint([(str(file.relative_to(path)), file.stat().st_size) for file in files])}
    size = path.stat().st_size
    if size > MAX_HASHED_BYTES:
        return {"name": path.name, "bytes": size, "mtime_ns": path.stat().st_mtime_ns}
    return {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
