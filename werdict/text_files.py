"""Finds and reads the files of users: lines, JSON objects and tables; all text that comes in passes here."""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import json
import math
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from werdict.files import named_path

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
    path = named_path(pattern)
    # names of files and folders may look like patterns
    start = next(place for place in (path, *path.parents) if os.path.lexists(place))
    names = glob.glob(os.path.join(glob.escape(str(start)), path.relative_to(start)), recursive=True)
    files = [path] if start == path and path.is_file() else [Path(name) for name in sorted(names)]
    files = [file for file in files if file.is_file()]
    if not files:
        raise ValueError(f"{option}: {pattern!r} names no file; give {allowed}")
    return files


def composed(value: Any) -> Any:
    """Return text, or all texts in lists and mappings, in the composed form of Unicode; macOS decomposes accents."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, list):
        return [composed(item) for item in value]
    return {composed(name): composed(item) for name, item in value.items()} if isinstance(value, dict) else value


def read_lines(path: Path, as_written: bool = False) -> Iterator[str]:
    r"""Yield the lines of a text file with their ends, which are ``\n``, ``\r\n`` or ``\r``.

    The file is UTF-8, or UTF-16 with a byte-order mark, and compressed if its name ends with ``.gz``.

    Args:
        path: of the file.
        as_written: do not compose letters, in a file that names others.

    Raises:
        ValueError: names the file and the line, which has another encoding, or cannot be decompressed.
        OSError: it cannot be read.
    """
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as file:
            start = file.read(BINARY_BYTES)
        # a strict decoder fails a buffer ahead of the line that is read, so that the message would name the wrong line
        encoding, errors = ("utf-16", "surrogatepass") if start.startswith(UTF_16) else ("utf-8", "surrogateescape")
        if "\0" in start.decode(encoding, "replace"):
            raise ValueError(
                f"{path} is binary, or UTF-16 without a byte-order mark: iconv -f UTF-16LE -t UTF-8 OLD > NEW"
            )
        with opener(path, "rt", encoding=encoding, errors=errors, newline="") as file:
            for line in file:
                number += 1
                line.encode()
                line = line.lstrip("\ufeff")  # also within a file, where another was appended
                yield line if as_written else unicodedata.normalize("NFC", line)
    except UnicodeEncodeError as error:
        byte = ord(error.object[error.start]) & 0xFF
        raise ValueError(
            f"{path}, line {number}: not UTF-8 text: byte {byte:#x}; if it is in Latin-1, save it as UTF-8: "
            "iconv -f CP1252 -t UTF-8 OLD > NEW"
        ) from None
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}, line {number + 1}: not UTF-8 text, or damaged: {error}") from error


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield where each line that is not empty stands, for messages, and the line without its end; see `read_lines`."""
    lines = enumerate(read_lines(path), start=1)
    yield from ((f"{path}, line {number}", line.rstrip("\r\n")) for number, line in lines if not line.isspace())


def json_objects(path: Path, as_written: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON file and their lines: one object per line, or an array, or objects of several lines.

    Args:
        path: of the file.
        as_written: as of `read_lines`.

    Raises:
        ValueError: names the file and the line, which is no object.
        OSError: it cannot be read.
    """
    started = False
    for number, line in enumerate(read_lines(path, as_written=True), start=1):
        if not (text := line.strip()):
            continue
        if not started and (text == "{" or text.startswith("[")):
            yield from _objects_across_lines(path, as_written)
            return
        started = True
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: no JSON: {error}") from error
        yield number, _as_object(f"{path}, line {number}", value, as_written)


def _objects_across_lines(path: Path, as_written: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    text, decoder = "".join(read_lines(path, as_written=True)), json.JSONDecoder()
    place, number = 0, 1
    while (start := BETWEEN_OBJECTS.match(text, place).end()) < len(text):  # type: ignore[union-attr]
        number += text.count("\n", place, start)
        try:
            value, place = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: no JSON: {error.msg}") from error
        yield number, _as_object(f"{path}, line {number}", value, as_written)
        number += text.count("\n", start, place)


def _as_object(where: str, value: object, as_written: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {str(value)[:60]!r} is not a JSON object of names and values")
    # not the line before, because a letter may be escaped in it
    return value if as_written else composed(value)


def table_rows(path: Path, as_written: bool = False, **dialect: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield where each line of a table stands that is not empty, and its fields; the names of columns are the first.

    Args:
        path: of the table.
        as_written: as of `read_lines`.
        **dialect: of ``csv.reader``.

    Raises:
        ValueError: names the file and the line that has not as many fields as the first, or a wrong quotation mark.
    """
    rows, num_columns = csv.reader(read_lines(path, as_written), **dialect), 0
    try:
        for fields in rows:
            num_columns = num_columns or len(fields)
            if fields and len(fields) == num_columns:
                yield f"{path}, line {rows.line_num}", fields
            elif any(map(str.strip, fields)):  # as a separator in a text makes it that is not quoted
                raise csv.Error(f"{len(fields)} fields, the header has {num_columns}")
    except csv.Error as error:  # such as a quotation mark that is never closed
        raise ValueError(f"{path}, line {rows.line_num}: {error}") from error


def check_header(where: str, names: Sequence[str]) -> list[str]:
    """Return the names of a table's columns without spaces around them.

    Raises:
        ValueError: two columns have one name.
    """
    header = [name.strip() for name in names]
    if twice := [name for name, times in Counter(header).items() if times > 1 and name]:
        raise ValueError(f"{where}: two columns are called {twice[0]!r}; rename or remove one")
    return header


def optional_text(value: object, name: str) -> str | None:
    """Return a value of a line as text; numbers become text, and null, or NaN as pandas writes it, None.

    Raises:
        ValueError: it is a list or the like.
    """
    if value is None or value != value:
        return None
    if isinstance(value, bool) or not isinstance(value, str | Real):
        raise ValueError(f"{name} must be text or a number, given {value!r:.60}")
    return str(value)


def as_text(value: object, name: str) -> str:
    """Return what `optional_text` returns, an empty text for null."""
    return optional_text(value, name) or ""


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
