"""What large corpora cost: preparing, starting to train, planning an epoch, resuming in it, padding.

    python scripts/bench corpora           three thousand and thirty thousand utterances, in some minutes
    python scripts/bench corpora --full    up to 300,000 utterances, and plans of ten million cuts

The corpus is made up: lhotse manifests of recordings that are all of a few files of noise, each with an utterance
somewhere in it, whose durations are spread as those of LibriSpeech. Every command runs in a process of its own. CPU
seconds are those of all its processes together, memory is that of the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import soundfile
from lhotse import MonoCut
from numpy.typing import NDArray

from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler
from bench.measure import Row, Setting, alone, peak_mb, timed_ms

RATE_HZ, FILE_S, NUM_FILES = 16_000, 36.0, 200
MEAN_S = 9.6  # 300,000 utterances are 800 h
OFFSET_S = {"train": 0.0, "dev": 0.003, "test": 0.006}
NUM_HELD_OUT = 100  # utterances of dev, and of test
BATCH_S = 120.0
PLANNED = (10_000, 100_000, 1_000_000)
PLAN_GOALS = {
    "plan of an epoch, CPU s": "15 for 10,000,000",
    "memory of it, durations and offsets, MB per rank (shared by its workers)": "1500 for 10,000,000",
    "resume in the middle, CPU s more than from the start": "5 for 10,000,000",
    "padding, %": "6 from 20,000",
}
COMMAND_GOALS = {
    "prepare, CPU s": "180 for 300,000",
    "prepare, peak MB of the largest process": "1500 for 300,000",
    "asr-train to its first update, CPU s more than for the first": "15 for 300,000",
    "the same, peak MB": "",
}
COMMAND = ("recipe=custom/transformer_ctc", "tokenizer=bpe", f"data.batch.max_duration_s={BATCH_S:g}", "logger=none")
ONE_UPDATE = (
    *("trainer.max_steps=1", "trainer.val_check_interval=1", "trainer.max_epochs=-1", "decode_test=false"),
    "data.transcripts_lm=0",  # of random words: more n-grams than are decoded with
    *("encoder.num_layers=1", "encoder.d_model=16", "encoder.num_heads=2", "encoder.d_feedforward=16"),
)


def librispeech_durations(num: int, seed: int = 0) -> NDArray[np.float64]:
    """Return durations in seconds: most near 14.6, as where readings were cut in pauses, others evenly shorter."""
    rng = np.random.default_rng(seed)
    usual = rng.random(num) < 0.72
    spread = np.where(usual, rng.normal(14.6, 1.1, num), rng.uniform(1.3, 14.0, num))
    return np.round(np.clip(spread, 1.3, 35.0), 2)


def write_corpus(folder: Path, num_train: int) -> Path:
    """Write manifests of train, dev and test, and their audio; return the folder."""
    (folder / "audio").mkdir(parents=True)
    rng = np.random.default_rng(0)
    files = [folder / "audio" / f"{number:03}.flac" for number in range(NUM_FILES)]
    for path in files:
        soundfile.write(path, rng.normal(size=round(FILE_S * RATE_HZ)) * 0.05, RATE_HZ)
    words = ["".join(letters) for letters in rng.choice(list("abcdefghijklmnop"), (3000, 5))]
    for split, num in (("train", num_train), ("dev", NUM_HELD_OUT), ("test", NUM_HELD_OUT)):
        durations = librispeech_durations(num, seed=len(split))
        durations = np.round(durations * MEAN_S / durations.mean(), 2)
        # what is trained on is not tested on: no two splits have a part that begins alike
        starts = np.round(rng.uniform(0, 1, num) * (FILE_S - durations - 0.02), 2) + OFFSET_S[split]
        with (
            (folder / f"recordings_{split}.jsonl").open("w") as recordings,
            (folder / f"supervisions_{split}.jsonl").open("w") as supervisions,
        ):
            for number in range(num):
                name, file = f"{split}-{number:08}", str(files[number % NUM_FILES])
                source = {"type": "file", "channels": [0], "source": file}
                recording = {"id": name, "sources": [source], "sampling_rate": RATE_HZ}
                recording |= {"num_samples": round(FILE_S * RATE_HZ), "duration": FILE_S, "channel_ids": [0]}
                text = " ".join(words[i] for i in rng.integers(0, len(words), max(1, int(durations[number] * 2.5))))
                segment = {"id": name, "recording_id": name, "start": starts[number], "duration": durations[number]}
                segment |= {"channel": 0, "text": text, "speaker": f"s{number % 2000}", "language": "en"}
                print(json.dumps(recording), file=recordings)
                print(json.dumps(segment), file=supervisions)
    return folder


def run(arguments: Sequence[str], folder: Path) -> tuple[float, float]:
    """Run a Python program to its end; return CPU seconds of all its processes, and the peak MB of the largest."""
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{(folder / 'log.txt').read_text()[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def commands(sizes: Sequence[int], folder: Path) -> Iterator[tuple[float, ...]]:
    """Yield for each size the costs of ``COMMAND_GOALS``."""
    least = 0.0
    for size in sizes:
        source = write_corpus(folder / f"corpus-{size}", size)
        words = (*COMMAND, f"data.source={source}", f"data.dir={folder / f'data-{size}'}")
        preparing = run(["-m", "asr.commands", "prepare", *words], folder)
        cpu_s, peak_mb = run(["-m", "asr.commands.train", *words, *ONE_UPDATE, f"run_dir=run-{size}"], folder)
        least = least or cpu_s
        yield *preparing, cpu_s - least, peak_mb


class Planned(list[MonoCut]):
    """Cuts of which only the durations are in memory, as those of prepared data."""

    def __init__(self, durations: NDArray[np.float64]) -> None:
        super().__init__()
        self.durations = durations

    def __len__(self) -> int:
        return len(self.durations)

    def __getitem__(self, index: int) -> MonoCut:  # type: ignore[override]
        return MonoCut(f"c{index}", 0.0, float(self.durations[index]), 0, [])


def first_batch(order: DurationBucketSampler, start: int) -> object:
    """Return the first micro-batch after those that were already processed."""
    return next(iter(order.updates(0, start, rank=0, world_size=1, accumulate=1)))


def plan(num_cuts: int) -> tuple[float, ...]:
    """Return the costs of ``PLAN_GOALS``; to be called in a process of its own."""
    durations = librispeech_durations(num_cuts)
    before = peak_mb()
    order = DurationBucketSampler(Planned(durations), BucketingConfig(BATCH_S), seed=1)
    planned_ms = timed_ms(lambda: order.plan(0))
    parts = order.plan(0)
    begun_ms, resumed_ms = (timed_ms(partial(first_batch, order, start)) for start in (0, len(parts) // 2))
    # offsets of the cuts, which prepared data hold beside the durations
    memory_mb = peak_mb() - before + 16 * num_cuts / 2**20
    first = list(islice(parts, 20_000))
    longest = sum(durations[part].max() * len(part) for part in first)
    padding = 1 - sum(durations[part].sum() for part in first) / longest
    return planned_ms / 1e3, memory_mb, (resumed_ms - begun_ms) / 1e3, 100 * padding


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add whether everything is measured."""
    parser.add_argument("--full", action="store_true", help="the sizes of the goals: half an hour, 2 GB of disk")


def rows(setting: Setting, _: str) -> Iterator[Row]:
    """Yield a row for each cost, with a column for each size."""
    full = setting.options.full
    planned = (*PLANNED, 10_000_000) if full else PLANNED[:1] if setting.small else PLANNED
    yield from _rows_of(PLAN_GOALS, planned, (alone(plan, size) for size in planned), ".1f")
    sizes = [3_000, 30_000, 100_000, 300_000] if full else [3_000, 30_000]
    yield from _rows_of(COMMAND_GOALS, sizes, commands(sizes, setting.work), ".0f")


def _rows_of(
    goals: dict[str, str], sizes: Sequence[int], found: Iterable[tuple[float, ...]], form: str
) -> Iterator[Row]:
    for (name, goal), costs in zip(goals.items(), zip(*found, strict=True), strict=True):
        cells = {f"{size:,}": format(cost, form) for size, cost in zip(sizes, costs, strict=True)}
        yield Row(name, cells | {"at most": goal})
