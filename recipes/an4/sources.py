"""Reads the cepstra of AN4 in each of their formats: 948 + 130 utterances.

T frames; every frame has 13 mel-frequency cepstral coefficients.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asr.data.manifests.archives import unpacked
from asr.data.manifests.source_files import visible_files
from asr.safe_io import named_path
from asr.text_files import read_lines

HOME = "http://www.speech.cs.cmu.edu/databases/an4/"
NUM_CEPSTRA = 13
SPLITS = ("train", "test")
INDEX, MATRIX, ARRAY = "index.tsv", "mfcc13.f16.npz", "mfcc"
LIST = "an4_train.fileids"
TRANSCRIPT = re.compile(r"(?:<s>)?(.*?)(?:</s>)?\s*\(([\w-]+)\)")


@dataclass(frozen=True)
class Utterance:
    """One utterance.

    Attributes:
        id: as in the corpus, ``an251-fash-b``.
        speaker: ``fash``.
        text: lower case.
        split: ``train`` or ``test``, the official one.
        cepstra: (T, 13), of a floating type.
    """

    id: str
    speaker: str
    text: str
    split: str
    cepstra: NDArray[np.floating]


def find_utterances(source: str, work: Path) -> list[Utterance]:
    """Return all utterances, sorted by id.

    Args:
        source: an archive or a folder, with index.tsv and mfcc13.f16.npz, or with CMU's etc/ and feat/.
        work: folder to unpack archives in.

    Raises:
        ValueError: ``source`` holds no such utterances.
    """
    folder = unpacked(named_path(source), work)
    indexes, lists = _named(folder, INDEX), _named(folder, LIST)
    if not indexes and not lists:
        raise ValueError(
            f"{source}: the cepstra of AN4 are not there; expected {INDEX} beside {MATRIX}, or the folders etc and "
            f"feat of {HOME}"
        )
    utterances = _from_index(indexes[0]) if indexes else _from_sphinx(lists[0].parent.parent)
    return sorted(utterances, key=lambda utterance: utterance.id)


def source_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that `find_utterances` reads, or could read."""
    indexes, lists = _named(folder, INDEX), _named(folder, LIST)
    if indexes:
        yield from (indexes[0], indexes[0].with_name(MATRIX))
    elif lists:
        home = lists[0].parent.parent
        yield from (home / "etc" / f"an4_{split}.{kind}" for split in SPLITS for kind in ("transcription", "fileids"))
        yield from (path for path in visible_files(home / "feat") if path.suffix == ".mfc")


def _named(folder: Path, name: str) -> list[Path]:
    return sorted(path for path in visible_files(folder) if path.name == name)


def _from_index(index: Path) -> Iterator[Utterance]:
    with np.load(index.with_name(MATRIX)) as arrays:
        cepstra: NDArray[np.floating] = arrays[ARRAY]
    for row in csv.DictReader(read_lines(index), delimiter="\t", quoting=csv.QUOTE_NONE):
        frames = cepstra[int(row["start"]) : int(row["end"])]
        yield Utterance(row["id"], row["speaker"], row["text"].lower(), row["split"], frames)


def _from_sphinx(folder: Path) -> Iterator[Utterance]:
    """Read CMU's format: ``etc`` lists files and transcripts, ``feat`` holds a file of cepstra per utterance."""
    for split in SPLITS:
        texts = _transcripts(folder / "etc" / f"an4_{split}.transcription")
        for name in _lines(folder / "etc" / f"an4_{split}.fileids"):
            speaker, utterance = Path(name).parent.name, Path(name).name
            yield Utterance(utterance, speaker, texts[utterance], split, read_mfc(folder / "feat" / f"{name}.mfc"))


def _transcripts(path: Path) -> dict[str, str]:
    matches = (match for line in _lines(path) if (match := TRANSCRIPT.fullmatch(line)))
    return {match[2]: match[1].strip().lower() for match in matches}


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in read_lines(path) if line.strip()]


def read_mfc(path: Path) -> NDArray[np.float32]:
    """Return the cepstra (T, 13) of a file in Sphinx's format.

    An int32 holds the number of values; the float32 values follow, frame by frame. The byte order is the one in which
    the number agrees with the size of the file.

    Raises:
        ValueError: the file has another size than its header says.

    Reference:
        https://cmusphinx.github.io/wiki/mfcformat
    """
    data = path.read_bytes()
    num_values = len(data) // 4 - 1
    for order in "><":
        if data[:4] == np.array(num_values, f"{order}i4").tobytes() and num_values > 0 and not num_values % NUM_CEPSTRA:
            return np.frombuffer(data, f"{order}f4", num_values, 4).astype(np.float32).reshape(-1, NUM_CEPSTRA)
    raise ValueError(f"{path}: {len(data)} bytes are no cepstra of Sphinx, {NUM_CEPSTRA} per frame, or truncated")
