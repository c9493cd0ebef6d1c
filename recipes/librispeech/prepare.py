"""LibriSpeech: read English books, up to 960 hours of training speech; and mini LibriSpeech, five hours of it.

Its parts are folders <part>/<speaker>/<chapter>/ with *.flac and a *.trans.txt.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import PositiveInt

from asr.data.manifests.archives import fetched, unpacked
from asr.data.manifests.corpus import Corpus, Dropped, ManifestRow, Manifests, manifests_of_split
from werdict.files import named_path
from werdict.text_files import numbered_lines, reads

TOP = "LibriSpeech"  # the folder in each archive
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
LINE = re.compile(r"((\d+)-(\d+)-\d+)(?:\s+(.*))?")
TRAIN = {
    "mini": ("train-clean-5",),
    "100": ("train-clean-100",),
    "460": ("train-clean-100", "train-clean-360"),
    "960": ("train-clean-100", "train-clean-360", "train-other-500"),
}
DEV = {"mini": ("dev-clean-2",)}  # of the others:
DEV_SETS, TEST_SETS = ("dev-clean", "dev-other"), ("test-clean", "test-other")


@dataclass(frozen=True)
class Part:
    """A part of the corpus, one archive.

    Attributes:
        num_utterances: that it has.
        resource: of openslr.org.
        checksum: of the archive, SHA-256 or MD5.
    """

    num_utterances: int
    checksum: str | None = None
    resource: int = 12


# SHA-256 as in torchaudio's datasets/librispeech.py, MD5 as in resources/31/md5sum.txt
PARTS = {
    "train-clean-100": Part(28_539, "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2"),
    "train-clean-360": Part(104_014, "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf"),
    "train-other-500": Part(148_688, "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2"),
    "dev-clean": Part(2703, "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3"),
    "dev-other": Part(2864, "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365"),
    "test-clean": Part(2620, "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23"),
    "test-other": Part(2939, "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29"),
    "train-clean-5": Part(1519, "5df7d4e78065366204ca6845bb08f490", 31),
    "dev-clean-2": Part(1089, "6d7ab67ac6a1d2c993d050e16d61080d", 31),
}
URL = "https://www.openslr.org/resources"


def fetch_parts(names: Sequence[str], work: Path) -> dict[str, Path]:
    """Download parts; return the folder of each.

    Raises:
        ValueError: a download failed, or is not what it should be.
    """
    folders: dict[str, Path] = {}
    for name in names:
        part = PARTS[name]
        folder = fetched(f"{URL}/{part.resource}/{name}.tar.gz", work, part.checksum)
        folders |= _folders(folder, [name])
    return folders


def find_parts(source: str, names: Sequence[str], work: Path) -> dict[str, Path]:
    """Return the folders of those parts that a source has.

    Args:
        source: a folder of parts or of their archives, the folder above it, or an archive of parts.
        names: of parts.
        work: folder to unpack archives in.

    Raises:
        ValueError: the source does not exist, or an archive in it is refused.
    """
    folder = unpacked(named_path(source), work)
    folders = _folders(folder, names)
    archives = _archives(folder)
    for name in names:
        if name not in folders and name in archives:
            folders |= _folders(unpacked(archives[name], work), [name])
    return folders


def source_files(folder: Path) -> Iterator[Path]:
    """Yield the transcripts and archives of a folder, which say what it holds; audio is not read to find that out."""
    for part in _folders(folder, list(PARTS)).values():
        yield from (transcript for _, transcript in _chapters(part))
    yield from _archives(folder).values()


def _folders(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    places = {name: (folder / name, folder / TOP / name) for name in names}
    return {name: place for name, both in places.items() for place in both if place.is_dir()}


def _archives(folder: Path) -> dict[str, Path]:
    places = ((name, folder / f"{name}{ending}") for name in PARTS for ending in reversed(ARCHIVES))
    return {name: place for name, place in places if place.is_file()}


def _chapters(part: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each folder of a chapter, and its transcripts; folders of the audio are not listed."""
    for speaker in _subfolders(part):
        for chapter in _subfolders(speaker):
            yield chapter, chapter / f"{speaker.name}-{chapter.name}.trans.txt"


def _subfolders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir() and entry.name.isdecimal()]
    return [folder / name for name in sorted(names, key=int)]


def read_part(split: str, part: Path) -> tuple[list[ManifestRow], list[Dropped]]:
    """Return the transcribed utterances of a part, in order, and its audio without a transcript.

    Raises:
        ValueError: a transcript is malformed; the message names the file and the line.
    """
    rows, dropped = [], []
    for chapter, transcript in _chapters(part):
        of_chapter = list(_transcripts(transcript)) if transcript.is_file() else []
        rows += of_chapter
        known = {row.id for row in of_chapter}
        recorded = sorted(name.removesuffix(".flac") for name in os.listdir(chapter) if name.endswith(".flac"))
        dropped += [
            Dropped(split, name, f"no transcript: {transcript} has no line for it")
            for name in recorded
            if name not in known
        ]
    return rows, dropped


def _transcripts(path: Path) -> Iterator[ManifestRow]:
    known = set()
    chapter = path.name.removesuffix(".trans.txt")
    for where, line in numbered_lines(path):
        match = LINE.fullmatch(line.strip())
        if match is None or f"{match[2]}-{match[3]}" != chapter or match[1] in known:
            raise ValueError(
                f"{where}: {line.strip()[:60]!r} is no transcript; expected {chapter}-NUMBER TEXT, each number once"
            )
        known.add(match[1])
        said = match[1], path.with_name(f"{match[1]}.flac"), match[4] or "", where, match[2]
        yield ManifestRow(*said, id=match[1], language="en")


@reads(source_files)
def prepare_librispeech(
    output_dir: Path, *, source: str | None = None, subsets: str | int = "960", num_jobs: PositiveInt | None = 1
) -> Corpus:
    """Return the official splits: one training set, and each development and test set by itself.

    Args:
        output_dir: archives are unpacked in it.
        source: a folder of the parts, unpacked or as archives, or one archive; None downloads them from openslr.org.
        subsets: hours to train on: ``100``, ``460``, ``960``; or ``mini``, five hours with a dev set of its own.
        num_jobs: processes that read headers, None for one on each core; changes nothing.

    Raises:
        ValueError: there is no such subset, or the source lacks a part of it.
    """
    name = str(subsets)
    if name not in TRAIN:
        raise ValueError(f"data.prepare.subsets must be one of {', '.join(TRAIN)}, given {subsets!r}")
    train, dev = TRAIN[name], DEV.get(name, DEV_SETS)
    if source is None:
        folders = fetch_parts([*train, *dev, *(() if name == "mini" else TEST_SETS)], output_dir)
    else:
        folders = find_parts(source, [*train, *dev, *TEST_SETS], output_dir)
    _refuse_incomplete(source, name, folders)
    read = {part: read_part("train" if part in train else part, folder) for part, folder in folders.items()}
    rows: dict[str, list[ManifestRow]] = {"train": [row for part in train for row in read[part][0]]}
    rows |= {part: of_part for part, (of_part, _) in read.items() if part not in train}
    splits: dict[str, Manifests] = {}
    dropped: list[Dropped] = [item for _, items in read.values() for item in items]
    for split, of_split in rows.items():
        splits[split], unusable = manifests_of_split(split, of_split, num_jobs)
        dropped += unusable
    return Corpus(splits, dropped, tuple(_notes(name, {part: len(of_part) for part, (of_part, _) in read.items()})))


def _refuse_incomplete(source: str | None, subsets: str, folders: Mapping[str, Path]) -> None:
    missing = [part for part in TRAIN[subsets] if part not in folders]
    dev = DEV.get(subsets, DEV_SETS)
    if not any(part in folders for part in dev):
        missing.append(" or ".join(dev))
    if missing:
        raise ValueError(
            f"{source}: {', '.join(missing)} of LibriSpeech is not there, as a folder or as an archive; "
            f"data.prepare.subsets={subsets} needs it. What is there: {', '.join(folders) or 'no other part of it'}."
        )


def _notes(subsets: str, sizes: Mapping[str, int]) -> Iterator[str]:
    yield f"LibriSpeech, read English books; trained on {', '.join(TRAIN[subsets])}"
    if missing := [part for part in (*DEV.get(subsets, DEV_SETS), *TEST_SETS) if part not in sizes]:
        yield f"not in the source, so that nothing is measured on it: {', '.join(missing)}"
    for part, size in sizes.items():
        if size != PARTS[part].num_utterances:
            yield (
                f"{size} transcripts of {part} instead of {PARTS[part].num_utterances}: not comparable with others' "
                "results"
            )
