"""The Free Spoken Digit Dataset: real digits, isolated or joined to strings of one speaker."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import soundfile
from lhotse import Recording, SupervisionSegment
from lhotse.supervision import AlignmentItem
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from asr.data.loading.sampling import seed_for
from asr.data.manifests.archives import download, unpacked
from asr.data.manifests.corpus import Corpus, Dropped, Manifests
from asr.data.preparation.prepared import fingerprint
from werdict.console import track
from werdict.files import named_path
from werdict.text_files import read_lines, reads, visible_files

# the tag with all six speakers; the branch may grow
URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v1.0.10.tar.gz"
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
Speaker = Literal["george", "jackson", "lucas", "nicolas", "theo", "yweweler"]
SAMPLING_RATE_HZ = 8000
NUM_RECORDINGS = 3000
WAV_NAME = re.compile(r"(\d)_(\w+)_(\d+)\.wav")
NUM_TEST, NUM_DEV = 5, 3  # of each digit and speaker: recordings 0-4 are the official test set, 5-7 our dev set
MIN_DIGITS = 2
MaxDigits = Annotated[int, Field(ge=MIN_DIGITS, le=20)]
GAP_S = (0.05, 0.25)
NOISE_DBFS = -60.0


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


@reads(source_files)
def prepare_fsdd(
    output_dir: Path,
    *,
    source: str | None = None,
    connected: bool = True,
    held_out_speaker: Speaker | None = None,
    num_train: PositiveInt = 3000,
    num_dev: PositiveInt = 150,
    num_test: PositiveInt = 300,
    max_digits: MaxDigits = 7,
    seed: int = 20261121,
) -> Corpus:
    """Return digit strings (or isolated digits) of the official split, or with one speaker held out.

    Args:
        output_dir: audio is written to ``audio/`` in it.
        source: an archive or folder of the dataset; None downloads the original.
        connected: join recordings of one speaker to strings; False: isolated digits.
        held_out_speaker: test on all recordings of this speaker, and train on the others'.
        num_train: training strings; of isolated digits all are used.
        num_dev: development strings.
        num_test: test strings.
        max_digits: longest string; the shortest has two digits.
        seed: of strings, gaps and noise.

    Raises:
        ValueError: ``source`` does not hold the dataset.
    """
    sizes = {"train": num_train, "dev": num_dev, "test": num_test}
    digits = find_digits(source, output_dir)
    pools, dropped = _readable(_pools(digits, held_out_speaker))
    audio = output_dir / "audio"
    audio.mkdir(parents=True, exist_ok=True)
    splits = {}
    for split, pool in pools.items():
        strings = draw_strings(split, pool, sizes[split], max_digits, seed) if connected else [[d] for d in pool]
        pairs = [
            _utterance(f"fsdd-{split}-{index:04d}", string, audio, seed)
            for index, string in enumerate(track(strings, f"writing {split}", transient=True))
        ]
        splits[split] = Manifests.of((recording for recording, _ in pairs), (segment for _, segment in pairs))
    return Corpus(splits, dropped, tuple(_notes(digits, connected, held_out_speaker)))


def _notes(digits: Sequence[Digit], connected: bool, held_out_speaker: str | None) -> Iterator[str]:
    kind = "joined recordings of isolated digits" if connected else "isolated digits"
    yield f"real human speech, {kind}, {len({digit.speaker for digit in digits})} speakers"
    if held_out_speaker:
        yield f"speaker {held_out_speaker} is in the test set only"
    else:
        yield "the test speakers are those of the training set: error rates say nothing about other speakers"
    if len(digits) != NUM_RECORDINGS:
        yield f"{len(digits)} recordings instead of the dataset's {NUM_RECORDINGS}: not comparable with others' results"


def _pools(digits: Sequence[Digit], held_out_speaker: str | None) -> dict[str, list[Digit]]:
    """Divide the recordings into splits."""
    pools: dict[str, list[Digit]] = {"train": [], "dev": [], "test": []}
    for digit in digits:
        if held_out_speaker is None:
            pools[digit.split].append(digit)
        elif digit.speaker == held_out_speaker:
            pools["test"].append(digit)
        else:
            # the official test recordings of the other speakers can be trained on
            pools["dev" if digit.split == "dev" else "train"].append(digit)
    return pools


def _readable(pools: dict[str, list[Digit]]) -> tuple[dict[str, list[Digit]], list[Dropped]]:
    good: dict[str, list[Digit]] = {split: [] for split in pools}
    dropped = []
    for split, pool in pools.items():
        for digit in pool:
            try:
                digit.samples()
            except ValueError as error:
                dropped.append(Dropped(split, digit.id, str(error)))
            else:
                good[split].append(digit)
        if not good[split]:
            why = dropped[0].reason if dropped else "the source holds none of them"
            raise ValueError(f"no recording for the {split} split can be used: {why}")
    return good, dropped


def draw_strings(split: str, pool: Sequence[Digit], size: int, max_digits: int, seed: int) -> list[list[Digit]]:
    """Draw strings of one speaker each; every recording of a speaker is used about equally often."""
    rng = np.random.default_rng(seed_for("fsdd", seed, split))
    of_speaker = {name: [d for d in pool if d.speaker == name] for name in sorted({d.speaker for d in pool})}
    waiting: dict[str, list[Digit]] = {name: [] for name in of_speaker}
    strings = []
    for index in range(size):
        speaker = list(of_speaker)[index % len(of_speaker)]
        length = int(rng.integers(MIN_DIGITS, max_digits + 1))
        while len(waiting[speaker]) < length:
            waiting[speaker] += [of_speaker[speaker][i] for i in rng.permutation(len(of_speaker[speaker]))]
        strings.append(waiting[speaker][:length])
        del waiting[speaker][:length]
    return strings


def _utterance(name: str, string: Sequence[Digit], folder: Path, seed: int) -> tuple[Recording, SupervisionSegment]:
    # the name has a fingerprint, because the folder may hold audio of other options
    path = folder / f"{name}-{fingerprint([seed, [digit.id for digit in string]])}.flac"
    audio, starts = join(string, seed_for(name, seed))
    if not path.exists():
        content = io.BytesIO()
        soundfile.write(content, audio, SAMPLING_RATE_HZ, "PCM_16", format="FLAC")
        partial = path.with_suffix(".partial")
        # writing through libsndfile would not report a full disk
        partial.write_bytes(content.getbuffer())
        partial.rename(path)
    recording = Recording.from_file(path, recording_id=name)
    text, speaker = " ".join(DIGITS[digit.digit] for digit in string), string[0].speaker
    custom: dict[str, Any] = {"recordings": [digit.id for digit in string]}
    words = [
        AlignmentItem(DIGITS[digit.digit], start / SAMPLING_RATE_HZ, len(digit.samples()) / SAMPLING_RATE_HZ)
        for digit, start in zip(string, starts, strict=True)
    ]
    return recording, SupervisionSegment(
        *(name, name, 0.0, recording.duration),
        text=text,
        language="en",
        speaker=speaker,
        custom=custom,
        alignment={"word": words},
    )


def join(string: Sequence[Digit], seed: int) -> tuple[NDArray[np.float64], list[int]]:
    """Return the joined recordings, with gaps of quiet noise around them, and the first sample of each."""
    rng = np.random.default_rng(seed)

    def gap() -> NDArray[np.float64]:
        return np.zeros(round(rng.uniform(*GAP_S) * SAMPLING_RATE_HZ))

    pieces, starts = [gap()], []
    for digit in string:
        starts.append(sum(map(len, pieces)))
        pieces += [digit.samples().astype(np.float64), gap()]
    audio = np.concatenate(pieces)
    return np.clip(audio + rng.normal(size=len(audio)) * 10 ** (NOISE_DBFS / 20), -1, 1), starts
