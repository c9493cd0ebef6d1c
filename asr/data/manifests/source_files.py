"""Reads the files and folders that a user gives as a source, within limits."""

from __future__ import annotations

import contextlib
import glob
import gzip
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from asr.safe_io import check_regular_file, named_path
from asr.text.normalize import SURROGATE

MAX_MANIFEST_BYTES = 2**33
MAX_LINE_CHARS = 2**24
# manifests compress to a tenth; a file that compresses to a hundredth is made to fill memory
MAX_RATIO = 100
FREE_BYTES = 2**24
BLOCK_BYTES = 2**20
MAX_BLANK_LINES = 10_000  # in a row
MAX_TEXT_CHARS = 20_000  # of a transcript; 15 minutes, the longest cut, have 17,500 of fast speech

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


def refuse_special(path: Path, what: str) -> None:
    """Refuse a path to neither a regular file nor a folder: a pipe or a device could be read forever.

    Raises:
        ValueError: it is, or does not exist.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        why = "" if isinstance(error, FileNotFoundError) else f" ({error})"
        shown = str(path) if len(str(path)) < 200 else f"{str(path)[:200]}…"
        raise ValueError(f"{what}: there is no file or folder {shown!r}{why}; give an existing path") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"{what}: {path} is neither a regular file nor a folder, but a device, a pipe or a socket")


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
        what = "names no file" if not names else "names no regular file, but folders, a pipe or a device"
        raise ValueError(f"{option}: {pattern!r} {what}; give {allowed}")
    return files


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file with their ends, decompressed if its name ends with .gz.

    Raises:
        ValueError: names the file and the line; it is no regular file, it or a line is too large when decompressed, or
            a line has another encoding.
    """
    number = 0
    try:
        for line in decoded_lines(path, encoding):
            yield line
            number += 1
    except ValueError as error:
        raise ValueError(f"{path}, line {number + 1}: {error}") from error


def decoded_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield as ``read_lines``; an error names neither file nor line, for callers that know more of the place."""
    check_regular_file(path, MAX_MANIFEST_BYTES)
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    # a strict decoder fails a buffer ahead of the line that is read, so that the message would name the wrong line
    with (
        _naming_decompression(),
        opener(path, "rt", encoding=encoding, errors="surrogateescape", newline="") as file,
    ):
        for line in _bounded(path, file):
            if not line.isascii() and (wrong := SURROGATE.search(line)):
                raise ValueError(
                    f"not UTF-8 text: byte 0x{ord(wrong[0]) - 0xDC00:x} at character {wrong.start() + 1}; save it "
                    "as UTF-8"
                )
            yield line


def count_lines(path: Path, most: int) -> int:
    """Return how many lines with anything in them ``read_lines`` will find, without decoding any.

    Args:
        path: of the file.
        most: lines to count; the rest is not read.

    Raises:
        ValueError: it is no regular file, or too large when decompressed.
    """
    check_regular_file(path, MAX_MANIFEST_BYTES)
    allowed, num_bytes, num_lines, before = _most_bytes(path), 0, 0, b"\n"
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "rb") as file, _naming_decompression():
        while num_lines <= most and (block := file.read(BLOCK_BYTES)):
            content = np.frombuffer(before + block, dtype=np.uint8)
            is_end = (content == ord("\n")) | (content == ord("\r"))
            num_lines += int(np.count_nonzero(is_end[:-1] & ~is_end[1:]))
            num_bytes, before = num_bytes + len(block), block[-1:]
            if num_bytes > allowed:
                raise ValueError(f"it unpacks to more than {allowed} bytes")
    return num_lines


@contextlib.contextmanager
def _naming_decompression() -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"it cannot be decompressed: {error}; copy or download it again") from error


def _most_bytes(path: Path) -> int:
    return min(FREE_BYTES + MAX_RATIO * path.stat().st_size, MAX_MANIFEST_BYTES)


def _bounded(path: Path, file: IO[str]) -> Iterator[str]:
    allowed = _most_bytes(path)
    num_chars = num_blank = 0
    while line := file.readline(MAX_LINE_CHARS + 1):
        num_chars += len(line)
        if len(line) > MAX_LINE_CHARS:
            raise ValueError(f"a line has more than {MAX_LINE_CHARS} characters")
        num_blank = num_blank + 1 if line.isspace() else 0
        if num_blank > MAX_BLANK_LINES:
            raise ValueError(f"more than {MAX_BLANK_LINES} lines in a row are blank")
        if num_chars > allowed:
            raise ValueError(f"it unpacks to more than {allowed} bytes")
        yield line


def refuse_unspeakable(where: str, text: str) -> None:
    """Refuse a transcript that is too long for the longest cut.

    Raises:
        ValueError: it is.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise ValueError(
            f"{where}: the transcript has {len(text)} characters; at most {MAX_TEXT_CHARS} are read. Cut the recording "
            "into utterances with transcripts of their own."
        )
