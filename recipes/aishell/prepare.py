"""AISHELL-1: read Mandarin, 150 hours of training speech by 340 speakers, in characters.

It has one file of transcripts, and wav/<split>/<speaker>/*.wav, or wav/<speaker>.tar.gz with these.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import PositiveInt

from asr.data.manifests.archives import fetched, unpacked
from asr.data.manifests.corpus import Corpus, Dropped, ManifestRow, Manifests, manifests_of_split
from werdict.files import named_path
from werdict.text_files import read_lines, reads, visible_files

URL = "https://www.openslr.org/resources/33/data_aishell.tgz"
MD5 = "2f494334227864a8a8fec932999db9d8"  # as in PaddleSpeech's dataset/aishell/aishell.py
TOP, WAV = "data_aishell", "wav"
TRANSCRIPT = Path("transcript", "aishell_transcript_v0.8.txt")
SPLITS = ("train", "dev", "test")
ARCHIVE = ".tar.gz"
# letters in Chinese text often take the width of a Chinese character
FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
NUM_UTTERANCES = {"train": 120_098, "dev": 14_326, "test": 7176}


@dataclass(frozen=True)
class Places:
    """The places of the corpus.

    Attributes:
        transcript: the file of all transcripts.
        wavs: folders with ``<split>/<speaker>/*.wav``.
    """

    transcript: Path
    wavs: tuple[Path, ...]


def find_corpus(source: str | None, work: Path) -> Places:
    """Return where the corpus lies, with the archives of its speakers unpacked.

    Args:
        source: the folder ``data_aishell``, the one above it, or an archive; None downloads the original.
        work: folder to unpack archives in.

    Raises:
        ValueError: the source does not hold AISHELL-1, or an archive is refused.
    """
    folder = fetched(URL, work, MD5) if source is None else unpacked(named_path(source), work)
    top = _top(folder)
    if top is None:
        raise ValueError(
            f"{source or folder}: AISHELL-1 is not there; expected {TRANSCRIPT} beside the folder {WAV}, as in "
            "data_aishell.tgz"
        )
    for archive in _archives(top / WAV):
        unpacked(archive, work / "speakers")
        if archive.is_relative_to(work):
            archive.unlink()  # our own copy, which would take as much room as the wavs
    # also those that an interrupted call has unpacked
    speakers = [path for path in _subfolders(work / "speakers") if path.suffix != ".partial"]
    return Places(top / TRANSCRIPT, (top / WAV, *speakers))


def source_files(folder: Path) -> Iterator[Path]:
    """Yield the transcripts of a folder; audio and the archives of speakers are not read to find out what changed."""
    if top := _top(folder):
        yield top / TRANSCRIPT


def _top(folder: Path) -> Path | None:
    return next((top for top in (folder, folder / TOP) if (top / TRANSCRIPT).is_file()), None)


def _archives(folder: Path) -> list[Path]:
    """Return the archives of speakers that were not unpacked beside them."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    speakers = [name.removesuffix(ARCHIVE) for name in names if name.endswith(ARCHIVE)]
    unpacked_too = {name for name in speakers for split in SPLITS if (folder / split / name).is_dir()}
    return [folder / f"{name}{ARCHIVE}" for name in speakers if name not in unpacked_too]


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def read_corpus(corpus: Places) -> tuple[dict[str, list[ManifestRow]], list[Dropped], int]:
    """Return the transcribed utterances of each split, audio without transcripts, and the number of the reverse."""
    lines = (line.split() for line in read_lines(corpus.transcript) if not line.isspace())
    # without the spaces between words, letters in capitals of normal width
    texts = {name: "".join(words).translate(FULL_WIDTH).upper() for name, *words in lines}
    splits: dict[str, list[ManifestRow]] = defaultdict(list)
    dropped: list[Dropped] = []
    recorded = set()
    for split in SPLITS:
        wavs = (path for folder in corpus.wavs for path in visible_files(folder / split) if path.suffix == ".wav")
        for path in sorted(wavs, key=lambda path: path.stem):
            recorded.add(path.stem)
            if path.stem in texts:
                said = path.stem, path, texts[path.stem], str(path), path.parent.name
                splits[split].append(ManifestRow(*said, id=path.stem, language="zh"))
            else:
                dropped.append(Dropped(split, path.stem, f"no transcript: {corpus.transcript.name} has no line for it"))
    return splits, dropped, len(texts.keys() - recorded)


@reads(source_files)
def prepare_aishell(output_dir: Path, *, source: str | None = None, num_jobs: PositiveInt | None = 1) -> Corpus:
    """Return the official split, transcripts without spaces.

    Args:
        output_dir: archives are unpacked in it.
        source: the folder ``data_aishell``, the one above it, or an archive; None downloads it from openslr.org.
        num_jobs: processes that read headers, None for one on each core; changes nothing.

    Raises:
        ValueError: the source does not hold AISHELL-1, or lacks a split.
    """
    rows, dropped, num_silent = read_corpus(find_corpus(source, output_dir))
    if missing := [split for split in SPLITS if not rows[split]]:
        raise ValueError(f"{source}: there is no transcribed audio of {' and '.join(missing)} below wav")
    splits: dict[str, Manifests] = {}
    for split in SPLITS:
        splits[split], unusable = manifests_of_split(split, rows[split], num_jobs)
        dropped += unusable
    sizes = {split: len(of_split) for split, of_split in rows.items()}
    return Corpus(splits, dropped, tuple(_notes(sizes, num_silent)))


def _notes(sizes: Mapping[str, int], num_silent: int) -> Iterator[str]:
    yield "AISHELL-1, read Mandarin; transcripts are characters without spaces"
    if num_silent:
        yield f"transcripts without audio: {num_silent}"
    for split, expected in NUM_UTTERANCES.items():
        if sizes[split] != expected:
            yield f"{sizes[split]} utterances of {split} instead of {expected}: not comparable with others' results"
