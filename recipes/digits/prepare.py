"""Connected digit strings spoken by eSpeak NG with many voices: synthetic speech, made entirely offline."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from asr.data.corpus import Corpus
from asr.data.seeding import seed_for
from asr.data.synthesis.shards import NOTE, Item, check_engine, check_sizes, manifests_of, place, quiet, speak
from asr.data.synthesis.voices import draw_speaker

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "oh")
MIN_WORDS, MAX_WORDS = 3, 7


def prepare_digits(
    output_dir: Path,
    *,
    source: str | None = None,
    num_train: int = 4000,
    num_dev: int = 200,
    num_test: int = 500,
    seed: int = 20261121,
    num_jobs: int = 2,
) -> Corpus:
    """Speak the corpus and return its manifests.

    What is said, by whom and how depends on (seed, split, index) alone. Audio is spoken in shards, which appear
    complete or not at all; those that an interrupted call left are used again.

    Args:
        output_dir: audio goes to ``audio/`` below it.
        source: must be None, the corpus is made here.
        num_train: training strings.
        num_dev: development strings.
        num_test: test strings.
        seed: of the strings, voices and ways of speaking.
        num_jobs: processes that speak at the same time; does not change what is said.

    Raises:
        ValueError: an argument is out of its range, or eSpeak NG is not installed.
    """
    if source is not None:
        raise ValueError(f"data.source: recipe digits makes its own audio and reads no source, given {source!r}")
    check_sizes({"num_train": num_train, "num_dev": num_dev, "num_test": num_test, "num_jobs": num_jobs})
    check_engine("digits")
    audio = output_dir / "audio"
    splits = {}
    for name, size in {"train": num_train, "dev": num_dev, "test": num_test}.items():
        plan = [draw(seed, name, index) for index in range(size)]
        speak(plan, audio, seed=seed, num_jobs=num_jobs)
        splits[name] = manifests_of(plan, audio)
    return Corpus(splits, notes=(NOTE,))


def draw(seed: int, split: str, index: int) -> Item:
    """Return what is said in an utterance, by whom and how."""
    rng = np.random.default_rng(seed_for("digits", seed, split, index))
    words = rng.choice(WORDS, rng.integers(MIN_WORDS, MAX_WORDS + 1))
    return {
        **place("digits", split, index),
        "text": " ".join(words),
        **draw_speaker(rng, split),
        **quiet(seed, split, index),
    }
