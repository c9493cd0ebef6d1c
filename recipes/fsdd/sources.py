"""Reads the Free Spoken Digit Dataset in each of its formats: 3000 recordings."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
from numpy.typing import NDArray

from asr.data.manifests.archives import download, unpacked
from asr.data.manifests.source_files import visible_files
from asr.safe_io import named_path
from asr.text_files import read_lines

# the tag with all six speakers; the branch may grow
URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v1.0.10.tar.gz"
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
Speaker = Literal["george", "jackson", "lucas", "nicolas", "theo", "yweweler"]
SAMPLING_RATE_HZ = 8000
NUM_RECORDINGS = 3000
WAV_NAME = re.compile(r"(\d)_(\w+)_(\d+)\.wav")
NUM_TEST, NUM_DEV = 5, 3  # of each digit and speaker: recordings 0-4 are the official test set, 5-7 our dev set


@dataclass(frozen=True)
class Digit:
    """One recorded digit.

    Attributes:
        id: ``<digit>_<speaker>_<index>``.
        digit: 0 to 9.
        speaker: a name.
        index: of the recording among those of its digit and speaker.
        path: of its file.
        start: first sample in the file.
        end: sample after the last; None for the whole file.
    """

    id: str
    digit: int
    speaker: str
    index: int
    path: Path
    start: int = 0
    end: int | None = None

    @property
    def split(self) -> str:
        """The official split, with a part of its training recordings as dev."""
        return "test" if self.index < NUM_TEST else "dev" if self.index < NUM_TEST + NUM_DEV else "train"

    def samples(self) -> NDArray[np.float32]:
        """Return the audio at 8 kHz.

        Raises:
            ValueError: it cannot be read, or is empty.
        """
        if not self.path.is_file():
            raise ValueError(f"missing audio: {self.path}")
        try:
            audio, rate_hz = soundfile.read(self.path, start=self.start, stop=self.end, dtype="float32")
        except (soundfile.SoundFileError, OSError) as error:
            raise ValueError(f"unreadable audio: {error}") from error
        if rate_hz != SAMPLING_RATE_HZ or audio.ndim != 1 or len(audio) == 0:
            raise ValueError(f"unexpected audio: {len(audio)} samples at {rate_hz} Hz, expected mono at 8000 Hz")
        if self.end is not None and len(audio) != self.end - self.start:
            raise ValueError(f"truncated audio: {self.path} ends before sample {self.end}")
        return audio


def find_digits(source: str | None, work: Path) -> list[Digit]:
    """Return all recordings, sorted by id.

    Args:
        source: an archive or a folder, with one FLAC per speaker and an index.tsv, or with the original wavs; None
            downloads the original.
        work: folder to unpack archives in.

    Raises:
        ValueError: ``source`` holds no such recordings.
    """
    folder = _folder(source, work)
    digits = sorted(_digits(folder), key=lambda digit: digit.id)
    if not digits:
        raise ValueError(
            f"{source or folder}: no recordings of the Free Spoken Digit Dataset are there; expected an index.tsv, or "
            "wavs named like 7_jackson_32.wav"
        )
    return digits


def source_files(folder: Path) -> list[Path]:
    """Return the files of a folder that `find_digits` reads."""
    return [*_indexes(folder)[:1], *dict.fromkeys(digit.path for digit in _digits(folder))]


def _digits(folder: Path) -> list[Digit]:
    if indexes := _indexes(folder):
        return _from_index(indexes[0])
    named = ((WAV_NAME.fullmatch(path.name), path) for path in visible_files(folder))
    return [Digit(path.stem, int(match[1]), match[2], int(match[3]), path.absolute()) for match, path in named if match]


def _indexes(folder: Path) -> list[Path]:
    return [path for path in visible_files(folder) if path.name == "index.tsv"]


def _folder(source: str | None, work: Path) -> Path:
    path = named_path(source) if source else download(URL, work / "original.tar.gz")
    try:
        return unpacked(path, work)
    except ValueError:
        if source is None:
            path.unlink()  # so that the next call downloads it again
        raise


def _from_index(index: Path) -> list[Digit]:
    return [
        Digit(
            id=row["id"],
            digit=DIGITS.index(row["text"]),
            speaker=row["speaker"],
            index=int(row["id"].rpartition("_")[2]),
            path=index.parent / Path(row["file"]).name,
            start=int(row["start"]),
            end=int(row["end"]),
        )
        for row in csv.DictReader(read_lines(index), delimiter="\t", quoting=csv.QUOTE_NONE)
    ]
