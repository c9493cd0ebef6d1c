"""The Free Spoken Digit Dataset: real digits, isolated or joined to strings of one speaker."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import soundfile
from lhotse import Recording, SupervisionSegment
from lhotse.supervision import AlignmentItem
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from asr.console import track
from asr.data.manifests.corpus import Corpus, Dropped, Manifests
from asr.data.manifests.source_files import reads
from asr.data.preparation.fingerprint import fingerprint
from asr.data.seeding import seed_for

from .sources import DIGITS, NUM_RECORDINGS, SAMPLING_RATE_HZ, Digit, Speaker, find_digits, source_files

MIN_DIGITS = 2
MaxDigits = Annotated[int, Field(ge=MIN_DIGITS, le=20)]
GAP_S = (0.05, 0.25)
NOISE_DBFS = -60.0


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
