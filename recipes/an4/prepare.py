"""CMU AN4 (Census): spelled names, numbers and dates by 84 speakers, as cepstra without audio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from lhotse import Features, SupervisionSegment

from asr.console import track
from asr.data.manifests.corpus import Corpus, Manifests
from asr.data.manifests.feature_storage import write_array
from asr.data.manifests.source_files import reads
from asr.data.seeding import seed_for

from .sources import HOME, NUM_CEPSTRA, Utterance, find_utterances, source_files

FRAME_SHIFT_S = 0.01
SAMPLING_RATE_HZ = 16_000  # of the audio that the cepstra were made from
NUM_UTTERANCES = {"train": 948, "test": 130}


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
