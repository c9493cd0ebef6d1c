"""Reads a table of recordings and transcripts, the simplest form of a corpus."""

from __future__ import annotations

import csv
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

from asr.console import track
from asr.data.manifests.source_files import read_lines, refuse_unspeakable
from asr.text.normalize import is_one_line

MAX_COLUMNS = 1000
REQUIRED = ("audio", "text")
OPTIONAL = ("speaker", "split", "id")
SPLIT_ALIASES = {"val": "dev", "valid": "dev", "validation": "dev", "training": "train", "eval": "test"}

# a table may have millions of rows; if this many name missing files, all do
NUM_LOOKED_FOR = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        line: its number in the file, from 1.
        id: of the utterance; without a column of ids the audio path as written, without its suffix.
        audio: the file.
        text: transcript as written.
        speaker: None where unknown.
        split: ``train``, ``dev…`` or ``test…``; None without a column of splits.
    """

    line: int
    id: str
    audio: Path
    text: str
    speaker: str | None
    split: str | None


def read_table(path: Path) -> tuple[list[Row], list[str]]:
    """Read a TSV with a header.

    Columns ``audio`` and ``text`` are required; ``speaker``, ``split`` and ``id`` are optional. Audio paths are
    relative to the table. UTF-8, without quoting: a quotation mark is a quotation mark.

    Returns:
        The rows, and notes on what was ignored or renamed.

    Raises:
        ValueError: the table is malformed; the message names the file and the line.
    """
    # str.splitlines would split at U+2028 too, which a transcript may hold
    lines = csv.reader(read_lines(path, "utf-8-sig"), delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        columns, notes = _columns(path, next(lines, []))
        found = _distinct(path, _rows(path, lines, columns))
        rows = list(islice(found, NUM_LOOKED_FOR))
        _refuse_all_missing(path, rows)
        rows += track(found, f"reading {path.name}", transient=True)
    except csv.Error as error:
        raise ValueError(f"{path}, line {lines.line_num}: {error}") from error
    if not rows:
        raise ValueError(f"{path}: the table has a header and no rows")
    aliases = sorted({row.split or "" for row in rows} & SPLIT_ALIASES.keys())
    notes += [f"split {alias!r} was read as {SPLIT_ALIASES[alias]!r}" for alias in aliases]
    return [_with_split(path, row) for row in rows], notes


def _columns(path: Path, header: list[str]) -> tuple[list[str], list[str]]:
    if len(header) > MAX_COLUMNS:
        raise ValueError(f"{path}, line 1: the header has {len(header)} columns; at most {MAX_COLUMNS} are read")
    columns = [name.strip().lower() for name in header]
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise ValueError(
            f"{path}, line 1: the header lacks {' and '.join(missing)}; it reads {str(header)[:200]}. The first line "
            f"names the columns, separated by tabs: {', '.join(REQUIRED)}, optionally {', '.join(OPTIONAL)}."
        )
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise ValueError(f"{path}, line 1: column {repeated[0]!r} occurs more than once in the header {header}")
    ignored = [name for name in columns if name not in REQUIRED + OPTIONAL]
    return columns, [f"columns not used: {', '.join(ignored)}"] if ignored else []


def _rows(path: Path, lines: Iterator[list[str]], columns: list[str]) -> Iterator[Row]:
    for number, fields in enumerate(lines, start=2):
        if not any(field.strip() for field in fields):
            continue
        if len(fields) != len(columns):
            raise ValueError(
                f"{path}, line {number}: {len(fields)} fields, the header has {len(columns)} ({', '.join(columns)}); "
                f"the line reads {' | '.join(fields)[:100]!r}"
            )
        yield _row(path, number, dict(zip(columns, fields, strict=True)))


def _row(path: Path, number: int, fields: Mapping[str, str]) -> Row:
    audio = Path(os.path.expanduser(fields["audio"].strip()))  # Path.expanduser raises an error on an unknown user
    if not audio.name:
        raise ValueError(f"{path}, line {number}: no audio is named; give a path relative to the table, or absolute")
    refuse_unspeakable(f"{path}, line {number}", fields["text"])
    id = fields.get("id", "").strip() or str(Path(fields["audio"].strip()).with_suffix(""))
    if not is_one_line(id):
        raise ValueError(f"{path}, line {number}: the id {id[:60]!r} holds an end of line; give another in a column id")
    return Row(
        line=number,
        id=id,
        audio=path.parent / audio,
        text=fields["text"],
        speaker=fields.get("speaker", "").strip() or None,
        split=unicodedata.normalize("NFC", fields.get("split", "").strip().lower()) or None,
    )


def _refuse_all_missing(path: Path, rows: list[Row]) -> None:
    if len(rows) == NUM_LOOKED_FOR and not any(os.path.isfile(row.audio) for row in rows):
        raise ValueError(
            f"{path}: none of the first {NUM_LOOKED_FOR} audio files is there, for example {str(rows[0].audio)!r}; "
            "paths are relative to the folder of the table, or absolute"
        )


def _distinct(path: Path, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows; refuse an id or an audio file that occurs twice."""
    ids: dict[str, int] = {}
    files: dict[str, int] = {}
    for row in rows:
        if ids.setdefault(row.id, row.line) != row.line:
            raise ValueError(
                f"{path}, line {row.line}: the id {row.id!r} occurs in line {ids[row.id]} too; "
                "name each recording once, or add a column id with names of your own"
            )
        # a recording with two names could be in both train and test
        file = _real(str(row.audio.parent), row.audio.name)
        if files.setdefault(file, row.line) != row.line:
            raise ValueError(
                f"{path}, line {row.line}: the audio {str(row.audio)!r} occurs in line {files[file]} too; "
                "name each recording once"
            )
        yield row


def _real(folder: str, name: str) -> str:
    """Return a path without links; folders are cached, because most files of a table share a few."""
    if "\0" in folder or "\0" in name:
        return os.path.join(folder, name)
    path = os.path.join(_real_folder(folder), name)
    return os.path.realpath(path) if name == ".." or os.path.islink(path) else path


_real_folder = lru_cache(os.path.realpath)


def _with_split(path: Path, row: Row) -> Row:
    split = SPLIT_ALIASES.get(row.split or "", row.split)
    # files are named by splits
    if split is not None and not re.fullmatch(r"train|(dev|test)[\w.-]*", split):
        raise ValueError(
            f"{path}, line {row.line}: there is no split {row.split!r}; allowed are train, and names of letters, "
            "digits, '_', '-' and '.' that begin with dev or test"
        )
    return row if split == row.split else replace(row, split=split)
