"""Finds and reads the files that a user gives as a source."""

from __future__ import annotations

import codecs
import glob
import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from lhotse.serialization import decode_json_line

from asr.safe_io import named_path

Prepare = TypeVar("Prepare", bound=Callable[..., Any])
SourceFiles = Callable[[Path], Iterable[Path]]
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BINARY_BYTES = 512  # read to see whether a file is text
BETWEEN_OBJECTS = re.compile(r"[\s,\[\]]*")


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
            if b"\0" in (start := file.read(BINARY_BYTES)) or start.startswith(UTF_16):
                raise ValueError(f"{path} is UTF-16 or binary; save text as UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW")
        with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            for line in file:
                number += 1
                line.encode()
                yield line
    except (UnicodeEncodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}, line {number}: not UTF-8 text, or damaged: {error}") from error


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON file and their lines: one object per line, or an array, or objects of several lines.

    Raises:
        ValueError: names the file and the line, which is no object.
    """
    started = False
    for number, line in enumerate(read_lines(path), start=1):
        if not (text := line.strip()):
            continue
        if not started and (text == "{" or text.startswith("[")):
            yield from _objects_across_lines(path)
            return
        started = True
        try:
            value = decode_json_line(text)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: no JSON: {error}") from error
        yield number, _as_object(f"{path}, line {number}", value)


def _objects_across_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    text, decoder = "".join(read_lines(path)), json.JSONDecoder()
    place, number = 0, 1
    while (start := BETWEEN_OBJECTS.match(text, place).end()) < len(text):  # type: ignore[union-attr]
        number += text.count("\n", place, start)
        try:
            value, place = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: no JSON: {error.msg}") from error
        yield number, _as_object(f"{path}, line {number}", value)
        number += text.count("\n", start, place)


def _as_object(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {str(value)[:60]!r} is not a JSON object of names and values")
    return value


def as_text(value: object, name: str) -> str:
    """Return a value of a line as text; numbers become text, and null, or NaN as pandas writes it, an empty one.

    Raises:
        ValueError: it is a list or the like.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name} must be text or a number, given {value!r:.60}")
    return str(value)


def as_number(value: object, name: str) -> float:
    """Return a value of a line as a number, also if it is written as text.

    Raises:
        ValueError: it is not a finite number.
    """
    try:
        number = float("nan" if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a number, given {value!r:.60}")
    return number


def as_integer(value: object, name: str) -> int:
    """Return a value of a line as a whole number.

    Raises:
        ValueError: it is not one.
    """
    if (number := as_number(value, name)) != int(number):
        raise ValueError(f"{name} must be a whole number, given {value!r}")
    return int(number)
