"""Finds and reads the files that a user gives as a source."""

from __future__ import annotations

import codecs
import glob
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from asr.safe_io import named_path

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


def matching_files(option: str, pattern: str, allowed: str) -> list[Path]:
    """Return the files of a path or glob pattern, in order.

    Args:
        option: that names them, for messages.
        pattern: of files.
        allowed: what may be given, for messages.

    Raises:
        ValueError: it matches no file.
    """
    expanded = str(named_path(pattern))
    # a file name may look like a pattern
    names = [expanded] if Path(expanded).is_file() else sorted(glob.glob(expanded, recursive=True))
    files = [Path(name) for name in names if Path(name).is_file()]
    if not files:
        raise ValueError(f"{option}: {pattern!r} names no file; give {allowed}")
    return files


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file in UTF-8 with their ends, decompressed if its name ends with .gz.

    Raises:
        ValueError: names the file and the line, which has another encoding, or cannot be decompressed.
    """
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        # a strict decoder fails a buffer ahead of the line that is read, so that the message would name the wrong line
        with opener(path, "rb") as file:
            if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise ValueError(f"{path} is UTF-16; save it as UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW")
        with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            for line in file:
                number += 1
                line.encode()
                yield line
    except (UnicodeEncodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}, line {number}: not UTF-8 text, or damaged: {error}") from error
