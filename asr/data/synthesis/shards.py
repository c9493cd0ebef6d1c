"""Lists of sentences → folders of audio spoken by eSpeak NG → manifests."""

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

from lhotse import Recording, SupervisionSegment

from asr.console import track
from asr.data.manifests.corpus import Corpus, Manifests
from asr.data.seeding import seed_for

SAMPLING_RATE_HZ = 16_000
SHARD_UTTERANCES = 200
MAX_JOBS = 256
NOTE = "synthetic speech (eSpeak NG): error rates say nothing about human speakers"

# what is said, by whom and how: the keys that ``place`` and ``voices.draw_speaker`` give, text, and those of ``quiet``
Item = dict[str, Any]
Plan = Sequence[Item]


def check_request(recipe: str, source: str | None, sizes: Mapping[str, int], num_jobs: int) -> None:
    """Refuse what a recipe that speaks its own corpus cannot do, before anything is spoken.

    Args:
        recipe: its name, for messages.
        source: must be None, the corpus is made here.
        sizes: utterances by split.
        num_jobs: processes that speak at the same time.

    Raises:
        ValueError: there is a source, a number is below 1, or eSpeak NG is not installed.
    """
    if source is not None:
        raise ValueError(f"data.source: recipe {recipe} makes its own audio and reads no source, given {source!r}")
    for name, number in {**{f"num_{split}": size for split, size in sizes.items()}, "num_jobs": num_jobs}.items():
        if number < 1:
            raise ValueError(f"data.prepare.{name} must be at least 1, given {number}")
    if importlib.util.find_spec("espeakng_loader") is None:
        raise ValueError(
            f"recipe {recipe} needs eSpeak NG, which is not installed because of its licence (GPL-3); "
            "install it with: pip install 'werdict[tts]'"
        )


def place(corpus: str, split: str, index: int) -> Item:
    """Return the id of an utterance and the shard that it is spoken in."""
    return {"id": f"{corpus}-{split}-{index:05d}", "shard": f"{split}-{index // SHARD_UTTERANCES:03d}"}


def quiet(seed: int, split: str, index: int) -> Item:
    """Return the near silence under an utterance: a recording has no digital zeros."""
    return {"noise_dbfs": -70.0, "noise_seed": seed_for("noise", seed, split, index)}


def speak_corpus(
    draw: Callable[[int, str, int], Item],
    sizes: Mapping[str, int],
    folder: Path,
    *,
    seed: int,
    num_jobs: int,
    finish: Callable[[Path, Plan], None] | None = None,
) -> Corpus:
    """Speak all splits and return their manifests; but for ``draw`` and ``sizes``, arguments are those of ``speak``.

    Args:
        draw: called as ``draw(seed, split, index)``, returns an utterance.
        sizes: utterances by split.
        folder: of the audio.
        seed: of the engine and of ``draw``.
        num_jobs: processes that speak at the same time.
        finish: changes the audio of a shard.
    """
    splits = {}
    for split, size in sizes.items():
        plan = [draw(seed, split, index) for index in range(size)]
        speak(plan, folder, seed=seed, num_jobs=num_jobs, finish=finish)
        splits[split] = manifests_of(plan, folder)
    return Corpus(splits, notes=(NOTE,))


def speak(
    plan: Plan, folder: Path, *, seed: int, num_jobs: int, finish: Callable[[Path, Plan], None] | None = None
) -> None:
    """Speak the shards that are missing.

    A shard is spoken by a fresh process in a fixed order, as what eSpeak NG says depends on what it said before. It
    appears complete or not at all; those that an interrupted call left are used again.

    Args:
        plan: the utterances of one split, in order.
        folder: audio goes to ``<folder>/<shard>/<id>.flac``.
        seed: of the engine.
        num_jobs: processes that speak at the same time; does not change what is said.
        finish: called with the folder of a shard just spoken and its items, to change the audio before it appears.
    """
    starts = range(0, len(plan), SHARD_UTTERANCES)
    shards = [plan[start : start + SHARD_UTTERANCES] for start in starts]
    missing = [items for items in shards if not (folder / items[0]["shard"]).is_dir()]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if num_jobs > MAX_JOBS:
        raise ValueError(f"data.prepare.num_jobs must be at most {MAX_JOBS} processes, given {num_jobs}")
    pool = ThreadPoolExecutor(num_jobs)
    try:
        jobs = pool.map(lambda items: _speak_shard(items, folder, seed, finish), missing)
        for _ in track(jobs, f"speaking {missing[0][0]['shard'].split('-')[0]}", total=len(missing)):
            pass
    finally:
        # after a failure or a Ctrl-C nothing more is spoken
        pool.shutdown(cancel_futures=True)


def _speak_shard(items: Plan, folder: Path, seed: int, finish: Callable[[Path, Plan], None] | None) -> None:
    """Speak a shard in a fresh process, into a folder that gets its name when it is complete."""
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


def manifests_of(plan: Plan, folder: Path) -> Manifests:
    """Return recordings and supervisions of what was spoken into ``folder``; a speaker is a voice variant."""
    recordings, supervisions = [], []
    for item in plan:
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
    return Manifests.of(recordings, supervisions)
