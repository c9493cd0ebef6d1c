"""Sentences of 1,200 words in many voices of eSpeak NG, with noise: synthetic speech, made offline."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import soundfile
from pydantic import PositiveInt

from asr.data.loading.sampling import seed_for
from asr.data.manifests.corpus import Corpus
from asr.data.synthesis.speak_corpus import (
    SpeechPlan,
    Utterance,
    check_request,
    draw_speaker,
    place,
    quiet,
    speak,
    speak_corpus,
)

from .noise import Audio, draw_noise, mix
from .sentences import sentence

ACCENTS = ("en", "en-gb-x-rp", "en-us")
NUM_TALKERS = 60  # clips of training voices to mix babble of


def prepare_phrases(
    output_dir: Path,
    *,
    source: str | None = None,
    num_train: PositiveInt = 8000,
    num_dev: PositiveInt = 300,
    num_test: PositiveInt = 600,
    seed: int = 20270104,
    num_jobs: PositiveInt | None = None,
) -> Corpus:
    """Synthesize the corpus, add noise, and return its manifests; an utterance depends on (seed, split, index) alone.

    Args:
        output_dir: audio is written to ``audio/`` in it; the shards of an interrupted call are used again.
        source: must be None, because the corpus is synthesized.
        num_train: training sentences.
        num_dev: development sentences.
        num_test: test sentences.
        seed: of the sentences, voices and noises.
        num_jobs: parallel processes, None for one on each core; does not change the audio.

    Raises:
        ValueError: a source is given, or eSpeak NG is not installed.
    """
    sizes = {"train": num_train, "dev": num_dev, "test": num_test}
    num_jobs = check_request("phrases", source, num_jobs)
    audio = output_dir / "audio"
    plan = [draw(seed, "talkers", index) for index in range(NUM_TALKERS)]
    speak(plan, audio, seed=seed, num_jobs=num_jobs)
    talkers = [soundfile.read(audio / item["shard"] / f"{item['id']}.flac")[0] for item in plan]
    finish = partial(_add_noise, talkers=talkers)
    return speak_corpus(draw, sizes, audio, seed=seed, num_jobs=num_jobs, finish=finish)


def draw(seed: int, split: str, index: int) -> Utterance:
    """Return text, voice and noise of an utterance; the split ``talkers`` is used for babble."""
    rng = np.random.default_rng(seed_for("phrases", seed, split, index))
    voices = "train" if split == "talkers" else split
    return {
        **place("phrases", split, index),
        "text": sentence(rng, voices),
        **draw_speaker(rng, voices, ACCENTS),
        **_brisk(rng),
        **quiet(seed, split, index),
        **draw_noise(rng),
    }


def _brisk(rng: np.random.Generator) -> Utterance:
    """Return a higher speed than that of digits: more words per second of training."""
    return {
        "words_per_minute": int(rng.integers(170, 241)),
        "lead_s": float(rng.uniform(0.05, 0.15)),
        "tail_s": float(rng.uniform(0.05, 0.15)),
    }


def _add_noise(folder: Path, plan: SpeechPlan, talkers: list[Audio]) -> None:
    for item in plan:
        file = folder / f"{item['id']}.flac"
        speech, rate_hz = soundfile.read(file)
        soundfile.write(file, mix(speech, item, talkers, rate_hz), rate_hz, subtype="PCM_16")
