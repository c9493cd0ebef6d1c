"""Reads a table of recordings and transcripts, the simplest form of a corpus."""

from __future__ import annotations

import csv
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asr.console import track
from asr.data.manifests.corpus import followed
from asr.data.manifests.source_files import read_lines
from asr.text.normalize import is_one_line

REQUIRED = ("audio", "text")
OPTIONAL = ("speaker", "split", "id")
SPLIT_ALIASES = {"val": "dev", "valid": "dev", "validation": "dev", "training": "train", "eval": "test"}


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
    """Read a table with a header: a TSV without quoting, or, where the name ends with .csv, a CSV with quotation marks.

    Columns ``audio`` and ``text`` are required; ``speaker``, ``split`` and ``id`` are optional. Audio paths are
    relative to the table. UTF-8.

    Returns:
        The rows, and notes on what was ignored or renamed.

    Raises:
        ValueError: the table is malformed; the message names the file and the line.
    """
    # str.splitlines would split at U+2028 too, which a transcript may hold
    text = read_lines(path, "utf-8-sig")
    is_csv = path.name.removesuffix(".gz").endswith(".csv")
    lines = csv.reader(text) if is_csv else csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        columns, notes = _columns(path, next(lines, []))
        rows = list(track(_distinct(path, _rows(path, lines, columns)), f"reading {path.name}", transient=True))
    except csv.Error as error:
        raise ValueError(f"{path}, line {lines.line_num}: {error}") from error
    if not rows:
        raise ValueError(f"{path}: the table has a header and no rows")
    aliases = sorted({row.split or "" for row in rows} & SPLIT_ALIASES.keys())
    notes += [f"split {alias!r} was read as {SPLIT_ALIASES[alias]!r}" for alias in aliases]
    return [_with_split(path, row) for row in rows], notes


def _columns(path: Path, header: list[str]) -> tuple[list[str], list[str]]:
    columns = [name.strip().lower() for name in header]
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise ValueError(
            f"{path}, line 1: the header lacks {' and '.join(missing)}; it reads {str(header)[:200]}. The first line "
            f"names the columns, separated by tabs (in a .csv, by commas): {', '.join(REQUIRED)}, optionally "
            f"{', '.join(OPTIONAL)}."
        )
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise ValueError(f"{path}, line 1: column {repeated[0]!r} occurs more than once in the header {header}")
    ignored = [name for name in columns if name not in REQUIRED + OPTIONAL]
    return columns, [f"columns not used: {', '.join(ignored)}"] if ignored else []


def _rows(path: Path, lines: Any, columns: list[str]) -> Iterator[Row]:
    for fields in lines:
        if not any(field.strip() for field in fields):
            continue
        if len(fields) != len(columns):
            raise ValueError(
                f"{path}, line {lines.line_num}: {len(fields)} fields, the header has {len(columns)} "
                f"({', '.join(columns)}); the line reads {' | '.join(fields)[:100]!r}"
            )
        yield _row(path, lines.line_num, dict(zip(columns, fields, strict=True)))


def _row(path: Path, number: int, fields: Mapping[str, str]) -> Row:
    audio = Path(os.path.expanduser(fields["audio"].strip()))  # Path.expanduser raises an error on an unknown user
    if not audio.name:
        raise ValueError(f"{path}, line {number}: no audio is named; give a path relative to the table, or absolute")
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


def _distinct(path: Path, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows; refuse an id or an audio file that occurs twice."""
    ids: dict[str, int] = {}
    files: dict[str, int] = {}
    for row in rows:
        # a recording with two names could be in both train and test
        for known, what, value in ((ids, "id", row.id), (files, "audio", followed(str(row.audio)))):
            if known.setdefault(value, row.line) != row.line:
                raise ValueError(
                    f"{path}, line {row.line}: the {what} {value!r} occurs in line {known[value]} too; name each "
                    "recording once, or add a column id"
                )
        yield row


def _with_split(path: Path, row: Row) -> Row:
    split = SPLIT_ALIASES.get(row.split or "", row.split)
    # files are named by splits
    if split is not None and not re.fullmatch(r"train|(dev|test)[\w.-]*", split):
        raise ValueError(
            f"{path}, line {row.line}: there is no split {row.split!r}; allowed are train, and names of letters, "
            "digits, '_', '-' and '.' that begin with dev or test"
        )
    return row if split == row.split else replace(row, split=split)
