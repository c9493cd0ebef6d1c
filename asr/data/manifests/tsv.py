"""Reads a table of recordings and transcripts, the simplest form of a corpus."""

from __future__ import annotations

import csv
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asr.console import track
from asr.data.manifests.recordings import Clip
from asr.data.manifests.source_files import read_lines

REQUIRED = ("audio", "text")
OPTIONAL = ("speaker", "split", "id")
SPLIT_ALIASES = {"val": "dev", "valid": "dev", "validation": "dev", "training": "train", "eval": "test"}


@dataclass(frozen=True, slots=True)
class Row(Clip):
    """One line of a table; without a column of ids its id is the audio path as written, without its suffix.

    Attributes:
        split: as written; None without a column of splits.
    """

    split: str | None


def split_of(name: str) -> str | None:
    """Return the split that a name means, ``train``, ``dev…`` or ``test…``; None if it means none."""
    split = SPLIT_ALIASES.get(name, name)
    return split if split == "train" or split.startswith(("dev", "test")) else None


def read_table(path: Path) -> tuple[list[Row], list[str]]:
    """Read a table with a header: a TSV without quoting, or, where the name ends with .csv, a CSV with quotation marks.

    Columns ``audio`` and ``text`` are required; ``speaker``, ``split`` and ``id`` are optional. Audio paths are
    relative to the table. UTF-8.

    Returns:
        The rows, and notes on what was ignored.

    Raises:
        ValueError: the table is malformed; the message names the file and the line.
    """
    # str.splitlines would split at U+2028 too, which a transcript may hold
    text = read_lines(path, "utf-8-sig")
    is_csv = path.name.removesuffix(".gz").endswith(".csv")
    lines = csv.reader(text) if is_csv else csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    rows: dict[str, Row] = {}
    try:
        columns = [name.strip().lower() for name in next(lines, [])]
        if missing := [name for name in REQUIRED if name not in columns]:
            raise ValueError(
                f"{path}, line 1: the header lacks {' and '.join(missing)}; it reads {columns}. The first line names "
                f"the columns, separated by tabs (in a .csv, by commas): {', '.join(REQUIRED)}, optionally "
                f"{', '.join(OPTIONAL)}."
            )
        for fields in track(lines, f"reading {path.name}", transient=True):
            if any(field.strip() for field in fields):
                row = _row(f"{path}, line {lines.line_num}", path.parent, columns, fields)
                if rows.setdefault(row.id, row) is not row:
                    raise ValueError(
                        f"{path}, line {lines.line_num}: the id {row.id!r} occurs before; name each recording once, or "
                        "add a column id"
                    )
    except csv.Error as error:  # such as a quotation mark that is never closed
        raise ValueError(f"{path}, line {lines.line_num}: {error}") from error
    ignored = [name for name in columns if name not in REQUIRED + OPTIONAL]
    return list(rows.values()), [f"columns not used: {', '.join(ignored)}"] if ignored else []


def _row(where: str, folder: Path, columns: Sequence[str], values: Sequence[str]) -> Row:
    if len(values) != len(columns):
        raise ValueError(f"{where}: {len(values)} fields, the header has {len(columns)} ({', '.join(columns)})")
    fields = dict(zip(columns, values, strict=True))
    name = fields["audio"].strip()
    if not name:
        raise ValueError(f"{where}: no audio is named; give a path relative to the table, or absolute")
    split = unicodedata.normalize("NFC", fields.get("split", "").strip().lower()) or None
    if split is not None and split_of(split) is None:
        raise ValueError(f"{where}: there is no split {split!r}; allowed are train, dev… and test…")
    return Row(
        id=fields.get("id", "").strip() or str(Path(name).with_suffix("")),
        audio=folder / os.path.expanduser(name),  # Path.expanduser raises an error on an unknown user
        text=fields["text"],
        speaker=fields.get("speaker", "").strip() or None,
        split=split,
    )
