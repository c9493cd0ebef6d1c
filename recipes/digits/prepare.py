"""Connected digit strings in many voices of eSpeak NG: synthetic speech, made offline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import PositiveInt

from asr.data.loading.sampling import seed_for
from asr.data.manifests.corpus import Corpus
from asr.data.synthesis.speak_corpus import Utterance, check_request, draw_speaker, place, quiet, speak_corpus

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "oh")
MIN_WORDS, MAX_WORDS = 3, 7


def prepare_digits(
    output_dir: Path,
    *,
    source: str | None = None,
    num_train: PositiveInt = 4000,
    num_dev: PositiveInt = 200,
    num_test: PositiveInt = 500,
    seed: int = 20261121,
    num_jobs: PositiveInt | None = None,
) -> Corpus:
    """Synthesize the corpus and return its manifests; an utterance depends on (seed, split, index) alone.

    Args:
        output_dir: audio is written to ``audio/`` in it; the shards of an interrupted call are used again.
        source: must be None, because the corpus is synthesized.
        num_train: training strings.
        num_dev: development strings.
        num_test: test strings.
        seed: of the strings and voices.
        num_jobs: parallel processes, None for one on each core; does not change the audio.

    Raises:
        ValueError: a source is given, or eSpeak NG is not installed.
    """
    sizes = {"train": num_train, "dev": num_dev, "test": num_test}
    num_jobs = check_request("digits", source, num_jobs)
    return speak_corpus(draw, sizes, output_dir / "audio", seed=seed, num_jobs=num_jobs)


def draw(seed: int, split: str, index: int) -> Utterance:
    """Return text and voice of an utterance."""
    rng = np.random.default_rng(seed_for("digits", seed, split, index))
    words = rng.choice(WORDS, rng.integers(MIN_WORDS, MAX_WORDS + 1))
    return {
        **place("digits", split, index),
        "text": " ".join(words),
        **draw_speaker(rng, split),
        **quiet(seed, split, index),
    }
