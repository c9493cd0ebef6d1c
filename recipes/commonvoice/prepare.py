"""Common Voice: sentences read by volunteers, in many languages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import PositiveInt

from asr.data.manifests.corpus import Corpus, Dropped, Manifests
from asr.data.manifests.rows import manifests_of_split
from asr.data.manifests.source_files import reads

from .sources import HELD_OUT, HOME, TRAINABLE, VotedRow, find_language, read_table, source_files


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
