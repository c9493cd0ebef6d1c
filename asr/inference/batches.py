"""Runs a recognizer over the batches of a set."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from asr.console import PlainProgress, bar_title
from asr.data.loading.batch import Batch
from asr.data.loading.loader import DataModule, explaining_lost_workers
from asr.errors import explaining_out_of_memory
from asr.models import devices
from asr.models.recognizer import Recognizer

LIMIT = "batch_duration_s (data.batch.max_duration_s in a run of asr-train)"

Result = TypeVar("Result")


@dataclass
class Processed(Generic[Result]):
    """What was found in a set.

    Attributes:
        results: in the order of the loader.
        unread: (id, reason) of each utterance that could not be read.
        audio_s: seconds of audio.
        seconds: wall-clock time for reading, features, model and search.
    """

    results: list[Result] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    audio_s: float = 0.0
    seconds: float = 0.0

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work per second of audio; None without audio."""
        return self.seconds / self.audio_s if self.audio_s else None


def default_device() -> torch.device:
    """Return the GPU if torch can use one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def process(
    recognizer: Recognizer,
    data_module: DataModule,
    cuts: Collection[Any],
    doing: str,
    work: Callable[[Batch, Tensor, Tensor], Sequence[Result]],
) -> Processed[Result]:
    """Do some work with every batch of a set on the device of the recognizer, with a progress bar.

    Args:
        doing: what is done to which set, for the bar and for errors, such as "decoding test".
        work: batch, encodings (B, T, D) and their valid lengths (B,) → results of its utterances.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RunFailed: a worker that reads data was lost.
    """
    device = next(recognizer.parameters()).device
    recognizer.eval()
    processed, start = Processed[Result](), time.monotonic()
    # on standard error, because standard output is for results
    bar = PlainProgress(stderr=True, transient=True)
    advice = f"when {doing}: lower {LIMIT}, or cut long audio into parts."
    with explaining_out_of_memory(lambda: advice), explaining_lost_workers(), bar as progress:
        task = progress.add_task(bar_title(doing), total=len(cuts))
        for batch in data_module.evaluation_loader(cuts):
            processed.unread.extend(batch.skipped)
            if len(batch):
                with explaining_out_of_memory(partial(_when_working, doing.split()[0], batch)), torch.inference_mode():
                    batch = batch.to(device)
                    processed.results.extend(work(batch, *recognizer(batch.features, batch.num_frames)))
            processed.audio_s += batch.audio_s
            progress.advance(task, len(batch) + len(batch.skipped))
    processed.seconds = time.monotonic() - start
    return processed


def _when_working(doing: str, batch: Batch) -> str:
    frames = devices.to_host(batch.num_frames)
    longest = batch.audio_s * max(frames) / max(1, sum(frames))
    return (
        f"when {doing} a batch of {len(batch)} utterances, {batch.audio_s:.1f} s of audio, the longest of "
        f"{longest:.1f} s: lower {LIMIT} below that sum, down to the longest; a longer utterance must be cut."
    )
