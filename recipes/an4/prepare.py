"""CMU AN4 (Census): spelled names, numbers and dates by 84 speakers, as cepstra without audio.

T frames; every frame has 13 mel-frequency cepstral coefficients.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from lhotse import Features, SupervisionSegment
from numpy.typing import NDArray

from asr.data.loading.sampling import seed_for
from asr.data.manifests.archives import unpacked
from asr.data.manifests.corpus import Corpus, Manifests, write_array
from werdict.console import track
from werdict.files import named_path
from werdict.text_files import read_lines, reads, visible_files

HOME = "http://www.speech.cs.cmu.edu/databases/an4/"
NUM_CEPSTRA = 13
SPLITS = ("train", "test")
INDEX, MATRIX, ARRAY = "index.tsv", "mfcc13.f16.npz", "mfcc"
LIST = "an4_train.fileids"
TRANSCRIPT = re.compile(r"(?:<s>)?(.*?)(?:</s>)?\s*\(([\w-]+)\)")
FRAME_SHIFT_S = 0.01
SAMPLING_RATE_HZ = 16_000  # of the audio that the cepstra were made from
NUM_UTTERANCES = {"train": 948, "test": 130}


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


@reads(source_files)
def prepare_an4(
    output_dir: Path, *, source: str | None = None, num_dev_speakers: int = 8, seed: int = 20261121
) -> Corpus:
    """Return the official split, with the utterances of some training speakers as dev.

    Args:
        output_dir: features are written to ``features/`` in it.
        source: an archive or folder of AN4's cepstra.
        num_dev_speakers: number of training speakers to use as dev.
        seed: of the choice of dev speakers.

    Raises:
        ValueError: an option is out of range, or ``source`` does not hold AN4.
    """
    if source is None:
        raise ValueError(
            f"recipe an4 needs data.source=PATH: an archive or folder of AN4's cepstra, from {HOME} or with index.tsv "
            "and mfcc13.f16.npz (recipes/an4/README.md)"
        )
    utterances = find_utterances(source, output_dir)
    dev = choose_dev({u.speaker for u in utterances if u.split == "train"}, num_dev_speakers, seed)
    splits: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for utterance in utterances:
        splits["dev" if utterance.speaker in dev else utterance.split].append(utterance)
    return Corpus(
        {name: _manifests(name, of_split, output_dir / "features") for name, of_split in splits.items()},
        notes=tuple(_notes(utterances, dev)),
    )


def choose_dev(speakers: set[str], num_dev_speakers: int, seed: int) -> set[str]:
    """Return the training speakers to use as dev; with one seed, larger sets contain smaller ones."""
    if not 1 <= num_dev_speakers < len(speakers):
        raise ValueError(
            f"data.prepare.num_dev_speakers must be in [1, {len(speakers) - 1}], there are {len(speakers)} training "
            f"speakers; given {num_dev_speakers}"
        )
    order = np.random.default_rng(seed_for("an4", seed)).permutation(len(speakers))
    return {sorted(speakers)[index] for index in order[:num_dev_speakers]}


def _notes(utterances: Sequence[Utterance], dev: set[str]) -> Iterator[str]:
    yield "real human speech as 13 cepstra per frame, without audio; official test set, of speakers found nowhere else"
    yield f"dev is the training speakers {', '.join(sorted(dev))}, who are not trained on"
    for split, expected in NUM_UTTERANCES.items():
        num_read = sum(utterance.split == split for utterance in utterances)
        if num_read != expected:
            yield f"{num_read} utterances of {split} instead of AN4's {expected}: not comparable with others' results"


def _manifests(split: str, utterances: Sequence[Utterance], folder: Path) -> Manifests:
    features = [_store(u, folder) for u in track(utterances, f"writing {split}", transient=True)]
    segments = [
        SupervisionSegment(u.id, u.id, 0.0, f.duration, text=u.text, language="en", speaker=u.speaker)
        for u, f in zip(utterances, features, strict=True)
    ]
    return Manifests.of(features, segments)


def _store(utterance: Utterance, folder: Path) -> Features:
    num_frames = len(utterance.cepstra)
    return Features(
        type="mfcc",
        num_frames=num_frames,
        num_features=NUM_CEPSTRA,
        frame_shift=FRAME_SHIFT_S,
        sampling_rate=SAMPLING_RATE_HZ,
        start=0.0,
        duration=round(num_frames * FRAME_SHIFT_S, ndigits=4),
        recording_id=utterance.id,
        channels=0,
        **write_array(folder, utterance.id, utterance.cepstra),
    )
