"""A corpus of a few seconds of noise with a table, for runs of the real programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from tests.small_runs import TINY_MODEL

RATE_HZ = 8000
SIZES = {"train": 8, "dev": 2, "test": 2}
TINY = (
    "recipe=custom/transformer_ctc",
    "data.source=my.tsv",
    "data.dir=data",
    "data.sampling_rate_hz=8000",
    "data.batch.max_duration_s=2.2",
    "augment=none",
    "trainer.max_epochs=-1",
    *TINY_MODEL,
)
TRAIN = (*TINY, "run_dir=run")


def write_audio(path: Path, duration_s: float = 1.0, rate_hz: int = RATE_HZ) -> None:
    samples = np.random.default_rng(len(path.name)).normal(size=round(duration_s * rate_hz)) * 0.1
    soundfile.write(path, samples, rate_hz)


def write_corpus(folder: Path, suffix: str = "wav") -> Path:
    """Write ``my.tsv`` and its audio; return the folder."""
    folder.mkdir(exist_ok=True)
    lines = ["audio\ttext\tsplit"]
    for split, size in SIZES.items():
        for number in range(size):
            write_audio(folder / f"{split}{number}.{suffix}")
            lines.append(f"{split}{number}.{suffix}\t{'ab'[number % 2]}\t{split}")
    (folder / "my.tsv").write_text("\n".join(lines) + "\n")
    return folder


def audio(folder: Path, split: str, suffix: str = "wav") -> list[Path]:
    return sorted(folder.glob(f"{split}?.{suffix}"))
