"""Finds a language of Common Voice, and reads its tables: <release>/<language>/*.tsv and clips/*.mp3."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asr.data.manifests.archives import unpacked
from asr.data.manifests.corpus import Dropped
from asr.data.manifests.rows import Row
from asr.safe_io import named_path
from asr.text_files import read_lines

HOME = "https://commonvoice.mozilla.org/datasets"
CLIPS = "clips"
HELD_OUT = ("dev", "test")
TRAINABLE = ("train", "validated", "other")
COLUMNS = ("client_id", "path", "sentence")
VOTES = ("up_votes", "down_votes")


@dataclass(frozen=True, slots=True)
class VotedRow(Row):
    """One line of a table; its id is the name of its file, without the ending.

    Attributes:
        margin: votes for it, less those against it.
    """

    margin: int = 0


def find_language(source: str, language: str | None, work: Path) -> Path:
    """Return the folder of a language.

    Args:
        source: that folder, one above it, or an archive.
        language: code of the language; None if there is only one.
        work: folder to unpack an archive in.

    Raises:
        ValueError: there is no such folder, or there are several.
    """
    folder = unpacked(named_path(source), work).resolve()  # whose name may be the language
    folders = [place for place in _places(folder) if (place / "test.tsv").is_file()]
    fitting = [place for place in folders if language in (None, place.name)]
    if len(fitting) != 1:
        there = ", ".join(sorted(place.name for place in folders)) or "none, no folder with test.tsv"
        wanted = "is needed, because there is not one alone" if language is None else f"{language!r} is not there once"
        raise ValueError(f"{source}: data.prepare.language {wanted}; the languages of Common Voice there are: {there}")
    return fitting[0]


def _places(folder: Path) -> Iterator[Path]:
    """Yield a folder, those in it, and those in these."""
    yield folder
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != CLIPS):
        yield inner
        if not (inner / CLIPS).is_dir():
            yield from sorted(path for path in inner.iterdir() if path.is_dir())


def source_files(folder: Path) -> Iterator[Path]:
    """Yield the tables of a folder that may be read; audio is not read to find out what changed."""
    for place in _places(folder):
        if (place / "test.tsv").is_file():
            yield from (place / f"{name}.tsv" for name in (*TRAINABLE, *HELD_OUT))


def read_table(folder: Path, name: str, split: str) -> tuple[list[VotedRow], list[Dropped]]:
    """Return the rows of a table, each clip once, and lines that cannot be used.

    There is no quoting: sentences hold unbalanced quotation marks.

    Args:
        folder: of the language.
        name: of the table, such as ``validated``.
        split: that lines are used for.

    Raises:
        ValueError: its header lacks a column.
    """
    path = folder / f"{name}.tsv"
    lines = read_lines(path)
    columns = next(lines, "").rstrip("\r\n").split("\t")
    if missing := [column for column in COLUMNS if column not in columns]:
        raise ValueError(f"{path}: the header lacks {', '.join(missing)}; needed are {', '.join(COLUMNS)}")
    rows: dict[str, VotedRow] = {}
    dropped = []
    for number, line in enumerate(lines, start=2):
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) != len(columns):
            reason = f"malformed line: {len(fields)} fields, the header of {path.name} has {len(columns)}"
            dropped.append(Dropped(split, f"{path.name}, line {number}", reason))
            continue
        row = _row(folder, dict(zip(columns, fields, strict=True)), f"{path.name}, line {number}")
        if row.stem in rows:
            dropped.append(Dropped(split, row.stem, f"duplicated clip: line {number} of {path.name} names it again"))
        else:
            rows[row.stem] = row
    return list(rows.values()), dropped


def _row(folder: Path, fields: dict[str, str], where: str) -> VotedRow:
    name = Path(fields["path"].strip()).name
    # the first releases leave the ending out
    file = Path(name if Path(name).suffix else f"{name}.mp3")
    up, down = (int(votes) if (votes := fields.get(column, "")).isdecimal() else 0 for column in VOTES)
    # a few speakers have most of a million rows
    speaker = sys.intern(fields["client_id"].strip()) or None
    said = file.stem, folder / CLIPS / file, fields["sentence"], where, speaker
    return VotedRow(*said, id=file.stem, language=folder.name, margin=up - down)
