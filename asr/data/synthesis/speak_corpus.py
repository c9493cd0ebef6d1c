"""Synthesizes corpora with eSpeak NG, whose voice variants are in fixed splits.

A speaker is a variant; an accent is a language of eSpeak NG. FROZEN: no later change may make the test voices easier.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from lhotse import Recording, SupervisionSegment

from asr.data.loading.sampling import seed_for
from asr.data.manifests.corpus import Corpus, Manifests
from asr.data.parallel import num_processes
from werdict.console import track

ACCENTS = (
    "en",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-gb-x-rp",
    "en-us",
    "en-us-nyc",
)
# similar voices are in one split; tests/data/synthesis/test_voices.py lists them, and what is left out
DEV = ("Andrea", "Lee", "Reed", "Storm", "f2", "ian", "m2", "paul", "quincy", "shelby")
TEST = (
    *("Alex", "Annie", "Denis", "Jacky", "antonio", "boris", "caleb", "f3"),
    *("grandma", "m4", "m7", "robert", "steph", "steph2", "steph3", "victor"),
)
TRAIN = (
    *("Alicia", "Andy", "AnxiousAndy", "Diogo", "Gene", "Gene2", "Henrique", "Hugo", "Marco", "Mario", "Michael"),
    *("Mike", "Mr serious", "Nguyen", "RicishayMax", "RicishayMax2", "RicishayMax3", "Tweaky", "adam", "anika"),
    *("announcer", "aunty", "belinda", "benjamin", "david", "ed", "edward", "edward2", "f1", "f4", "f5", "fast"),
    *("grandpa", "gustave", "iven", "iven2", "iven3", "iven4", "john", "kaukovalta", "klatt", "klatt2", "klatt3"),
    *("klatt4", "klatt5", "klatt6", "linda", "m1", "m3", "m5", "m6", "m8", "marcelo", "max", "michel", "miguel"),
    *("mike2", "norbert", "pablo", "pedro", "rob", "sandro", "travis", "zac"),
)
VOICES = {"train": TRAIN, "dev": DEV, "test": TEST}
SAMPLING_RATE_HZ = 16_000
SHARD_UTTERANCES = 200
NOTE = "synthetic speech (eSpeak NG): error rates say nothing about human speakers"
# an utterance: text, and the keys of ``place``, ``draw_speaker`` and ``quiet``
Utterance = dict[str, Any]
SpeechPlan = Sequence[Utterance]


def check_request(recipe: str, source: str | None, num_jobs: int | None) -> int:
    """Check the options of a recipe that synthesizes its corpus, and return the number of parallel processes.

    Args:
        recipe: its name, for messages.
        source: must be None, because the corpus is synthesized.
        num_jobs: parallel processes; None: one for each core.

    Raises:
        ValueError: a source is given, or eSpeak NG is not installed.
    """
    if source is not None:
        raise ValueError(
            f"data.source: recipe {recipe} makes its own audio and reads no source, given {source!r}; for your own "
            "recordings give recipe=custom/transformer_ctc"
        )
    if importlib.util.find_spec("espeakng_loader") is None:
        raise ValueError(
            f"recipe {recipe} needs eSpeak NG, which is not installed because of its licence (GPL-3); "
            "install it with: pip install 'werdict[tts]'"
        )
    return num_processes(num_jobs)


def draw_speaker(rng: np.random.Generator, split: str, accents: Sequence[str] = ACCENTS) -> dict[str, Any]:
    """Return a random voice of a split, speed, pitch and level."""
    variant, accent = str(rng.choice(VOICES[split])), str(rng.choice(accents))
    return {
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
    }


def place(corpus: str, split: str, index: int) -> Utterance:
    """Return the id of an utterance and its shard."""
    return {"id": f"{corpus}-{split}-{index:05d}", "shard": f"{split}-{index // SHARD_UTTERANCES:03d}"}


def quiet(seed: int, split: str, index: int) -> Utterance:
    """Return the noise floor of an utterance: recordings have no digital zeros."""
    return {"noise_dbfs": -70.0, "noise_seed": seed_for("noise", seed, split, index)}


def speak_corpus(
    draw: Callable[[int, str, int], Utterance],
    sizes: Mapping[str, int],
    folder: Path,
    *,
    seed: int,
    num_jobs: int,
    finish: Callable[[Path, SpeechPlan], None] | None = None,
) -> Corpus:
    """Synthesize all splits and return their manifests.

    Args:
        draw: (seed, split, index) → utterance.
        sizes: utterances by split.
        folder: as in ``speak``, like the other arguments.
        seed: of the engine and of ``draw``.
        num_jobs: parallel processes.
        finish: changes the audio of a shard.
    """
    splits = {}
    for split, size in sizes.items():
        plan = [draw(seed, split, index) for index in range(size)]
        speak(plan, folder, seed=seed, num_jobs=num_jobs, finish=finish)
        splits[split] = manifests_of(plan, folder)
    return Corpus(splits, notes=(NOTE,))


def speak(
    plan: SpeechPlan,
    folder: Path,
    *,
    seed: int,
    num_jobs: int,
    finish: Callable[[Path, SpeechPlan], None] | None = None,
) -> None:
    """Synthesize the missing shards.

    A new process synthesizes a shard in a fixed order, because eSpeak NG's output depends on its earlier output. A
    shard appears complete or not at all; the shards of an interrupted call are used again.

    Args:
        plan: the utterances of one split, in order.
        folder: audio is written to ``<folder>/<shard>/<id>.flac``.
        seed: of the engine.
        num_jobs: parallel processes; does not change the audio.
        finish: called with the folder of a new shard and its items; may change the audio.
    """
    starts = range(0, len(plan), SHARD_UTTERANCES)
    shards = [plan[start : start + SHARD_UTTERANCES] for start in starts]
    missing = [items for items in shards if not (folder / items[0]["shard"]).is_dir()]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    pool = ThreadPoolExecutor(num_jobs)
    try:
        jobs = pool.map(lambda items: _speak_shard(items, folder, seed, finish), missing)
        for _ in track(jobs, f"speaking {missing[0][0]['shard'].split('-')[0]}", total=len(missing)):
            pass
    finally:
        # without this, a failure or Ctrl-C would wait for all shards
        pool.shutdown(cancel_futures=True)


def _speak_shard(items: SpeechPlan, folder: Path, seed: int, finish: Callable[[Path, SpeechPlan], None] | None) -> None:
    """Synthesize a shard in a new process, into a folder that is renamed when complete."""
    name = items[0]["shard"]
    work = folder / f"{name}.partial"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    plan = {"seed": seed_for("espeak", seed, name) % 2**31, "sampling_rate_hz": SAMPLING_RATE_HZ, "items": items}
    (work / "plan.json").write_text(json.dumps(plan, indent=1), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).with_name("speak.py")), str(work / "plan.json"), str(work)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"speaking shard {name} failed:\n{done.stderr.strip()}")
    if finish is not None:
        finish(work, items)
    work.rename(folder / name)


def manifests_of(plan: SpeechPlan, folder: Path) -> Manifests:
    """Return recordings and supervisions of the audio in ``folder``; a speaker is a voice variant."""
    recordings, supervisions = [], []
    for item in plan:
        name, custom = item["id"], {"accent": item["accent"]}
        recording = Recording.from_file(folder / item["shard"] / f"{name}.flac", recording_id=name)
        described = {"text": item["text"], "language": "en", "speaker": item["variant"], "custom": custom}
        recordings.append(recording)
        supervisions.append(SupervisionSegment(name, name, 0.0, recording.duration, **described))
    return Manifests.of(recordings, supervisions)
