"""Common Voice: sentences read by volunteers, in many languages: <release>/<language>/*.tsv and clips/*.mp3."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import PositiveInt

from asr.data.manifests.archives import unpacked
from asr.data.manifests.corpus import Corpus, Dropped, ManifestRow, Manifests, manifests_of_split
from werdict.files import named_path
from werdict.text_files import read_lines, reads

HOME = "https://commonvoice.mozilla.org/datasets"
CLIPS = "clips"
HELD_OUT = ("dev", "test")
TRAINABLE = ("train", "validated", "other")
COLUMNS = ("client_id", "path", "sentence")
VOTES = ("up_votes", "down_votes")


@dataclass(frozen=True, slots=True)
class VotedRow(ManifestRow):
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


@reads(source_files)
def prepare_commonvoice(
    output_dir: Path,
    *,
    source: str | None = None,
    language: str | None = None,
    train: Sequence[str] = ("train",),
    num_jobs: PositiveInt | None = 1,
) -> Corpus:
    """Return the official dev and test sets, and a training set that shares neither clips nor speakers with them.

    Args:
        output_dir: archives are unpacked in it.
        source: an archive, its unpacked folder, or the folder of a language.
        language: its code, such as ``fr``; None if the source has only one.
        train: tables to train on, some of ``train``, ``validated``, ``other``; a clip in several counts once. Of
            ``other``, whose clips have not been voted on enough, those with more votes against than for are left out.
        num_jobs: processes that read headers, None for one on each core; changes nothing.

    Raises:
        ValueError: an option is out of range, or the source does not hold the language.
    """
    if source is None:
        raise ValueError(
            f"recipe commonvoice needs data.source=PATH: an archive or folder of a language, from {HOME}, where its "
            "terms have to be accepted"
        )
    if not train or len(set(train)) < len(train) or not set(train) <= set(TRAINABLE):
        raise ValueError(
            f"data.prepare.train must be a list of some of {', '.join(TRAINABLE)}, each once, given {list(train)}"
        )
    folder = find_language(source, language, output_dir)
    rows: dict[str, list[VotedRow]] = {}
    dropped: list[Dropped] = []
    for split in HELD_OUT:
        rows[split], unusable = read_table(folder, split, split)
        dropped += unusable
    rows["train"], left_out, unusable = _training_rows(
        folder, train, [row for of_split in rows.values() for row in of_split]
    )
    splits: dict[str, Manifests] = {}
    for split, of_split in rows.items():
        splits[split], unread = manifests_of_split(split, of_split, num_jobs)
        unusable += unread
    return Corpus(splits, [*dropped, *unusable], tuple(_notes(folder, train, left_out)))


def _training_rows(
    folder: Path, tables: Sequence[str], held_out: Sequence[VotedRow]
) -> tuple[list[VotedRow], Mapping[tuple[str, str], int], list[Dropped]]:
    """Return the rows to train on, how many others of each table are left out and why, and unusable lines."""
    clips, speakers = {row.stem for row in held_out}, {row.speaker for row in held_out} - {None}
    kept: dict[str, VotedRow] = {}
    left_out: Counter[tuple[str, str]] = Counter()
    dropped = []
    for table in tables:
        rows, unusable = read_table(folder, table, "train")
        dropped += unusable
        for row in rows:
            if row.stem in clips:
                left_out[table, "clips of dev or test"] += 1
            elif row.speaker in speakers:
                left_out[table, "other clips by speakers of dev or test"] += 1
            elif table == "other" and row.margin < 0:
                left_out[table, "clips with more votes against than for"] += 1
            else:
                kept.setdefault(row.stem, row)
    return list(kept.values()), left_out, dropped


def _notes(folder: Path, train: Sequence[str], left_out: Mapping[tuple[str, str], int]) -> Iterator[str]:
    release = f" of {folder.parent.name}" if folder.parent.name.startswith("cv-corpus") else ""
    tables = ", ".join(f"{name}.tsv" for name in train)
    yield f"Common Voice{release}, language {folder.name}, read by volunteers; trained on {tables}"
    for (table, why), number in left_out.items():
        yield f"left out of {table}.tsv: {number} {why}"
