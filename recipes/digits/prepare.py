"""Connected digit strings spoken by eSpeak NG with many voices: synthetic speech, made entirely offline."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from lhotse import Recording, RecordingSet, SupervisionSegment, SupervisionSet
from rich.progress import track

from asr.data.corpus import Corpus, Manifests
from asr.data.seeding import seed_for

from .voices import ACCENTS, VOICES

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "oh")
MIN_WORDS, MAX_WORDS = 3, 7
SAMPLING_RATE_HZ = 16_000
SHARD_UTTERANCES = 200
NOTE = "synthetic speech (eSpeak NG): error rates say nothing about human speakers"


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
    sizes = {"train": num_train, "dev": num_dev, "test": num_test}
    _check(source, sizes, num_jobs)
    plans = {name: [draw(seed, name, index) for index in range(size)] for name, size in sizes.items()}
    _speak_all(plans, output_dir / "audio", seed, num_jobs)
    splits = {name: _manifests(items, output_dir / "audio") for name, items in plans.items()}
    return Corpus(splits, notes=(NOTE,))


def _check(source: str | None, sizes: dict[str, int], num_jobs: int) -> None:
    if source is not None:
        raise ValueError(f"data.source: recipe digits makes its own audio and reads no source, given {source!r}")
    for name, size in {**{f"num_{name}": size for name, size in sizes.items()}, "num_jobs": num_jobs}.items():
        if size < 1:
            raise ValueError(f"data.prepare.{name} must be at least 1, given {size}")
    if importlib.util.find_spec("espeakng_loader") is None:
        raise ValueError(
            "recipe digits needs eSpeak NG, which is not installed because of its licence (GPL-3); "
            "install it with: pip install 'werdict[tts]'"
        )


def draw(seed: int, split: str, index: int) -> dict[str, Any]:
    """Return what is said in an utterance, by whom and how."""
    rng = np.random.default_rng(seed_for("digits", seed, split, index))
    words = rng.choice(WORDS, rng.integers(MIN_WORDS, MAX_WORDS + 1))
    variant, accent = str(rng.choice(VOICES[split])), str(rng.choice(ACCENTS))
    return {
        "id": f"digits-{split}-{index:05d}",
        "shard": f"{split}-{index // SHARD_UTTERANCES:03d}",
        "text": " ".join(words),
        "variant": variant,
        "accent": accent,
        "voice": f"{accent}+{variant}",
        "words_per_minute": int(rng.integers(120, 221)),
        "pitch": int(rng.integers(20, 81)),
        "pitch_range": int(rng.integers(20, 81)),
        "word_gap": int(rng.integers(0, 4)),  # units of 10 ms
        "peak_dbfs": float(rng.uniform(-30, -6)),
        "lead_s": float(rng.uniform(0.1, 0.3)),
        "tail_s": float(rng.uniform(0.1, 0.3)),
        "noise_dbfs": -70.0,
        "noise_seed": seed_for("noise", seed, split, index),
    }


def _shards(plans: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for items in plans.values():
        for start in range(0, len(items), SHARD_UTTERANCES):
            shard = items[start : start + SHARD_UTTERANCES]
            yield shard[0]["shard"], shard


def _speak_all(plans: dict[str, list[dict[str, Any]]], folder: Path, seed: int, num_jobs: int) -> None:
    missing = [(name, items) for name, items in _shards(plans) if not (folder / name).is_dir()]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(num_jobs) as pool:
        jobs = pool.map(lambda shard: _speak_shard(shard[0], shard[1], folder, seed), missing)
        for _ in track(jobs, "speaking digits", total=len(missing)):
            pass


def _speak_shard(name: str, items: list[dict[str, Any]], folder: Path, seed: int) -> None:
    """Speak a shard in a fresh process, into a folder that gets its name when it is complete."""
    work = folder / f"{name}.partial"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    plan = {"seed": seed_for("espeak", seed, name) % 2**31, "sampling_rate_hz": SAMPLING_RATE_HZ, "items": items}
    (work / "plan.json").write_text(json.dumps(plan, indent=1), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).with_name("speak.py")), str(work / "plan.json"), str(work)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"speaking shard {name} failed:\n{done.stderr.strip()}")
    work.rename(folder / name)


def _manifests(items: list[dict[str, Any]], folder: Path) -> Manifests:
    recordings, supervisions = [], []
    for item in items:
        recording = Recording.from_file(folder / item["shard"] / f"{item['id']}.flac", recording_id=item["id"])
        recordings.append(recording)
        supervisions.append(
            SupervisionSegment(
                id=item["id"],
                recording_id=item["id"],
                start=0.0,
                duration=recording.duration,
                text=item["text"],
                language="en",
                speaker=item["variant"],
                custom={"accent": item["accent"]},
            )
        )
    return Manifests(RecordingSet.from_recordings(recordings), SupervisionSet.from_segments(supervisions))
