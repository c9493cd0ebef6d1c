"""A training and an evaluation, from built parts to hypotheses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import lightning.pytorch as pl
import torch
from rich.console import Console
from rich.progress import Progress

from asr.data.batch import Batch
from asr.data.loader import EvaluationLoader
from asr.evaluation.wer import Utterance
from asr.models.recogniser import Recogniser
from asr.text.tokenizer import Tokenizer
from asr.training.module import Decoder, TrainingModule, decode
from asr.training.out_of_memory import explaining_out_of_memory
from asr.training.resume import ResumableLoader


def fit(
    trainer: pl.Trainer,
    module: TrainingModule,
    loader: ResumableLoader,
    dev: Sequence[EvaluationLoader],
    checkpoint: Path | None = None,
) -> None:
    """Train until ``trainer.max_steps`` updates, from the beginning or behind a checkpoint."""
    loader.trainer = trainer
    for part in dev:
        part.rank, part.world_size = trainer.global_rank, trainer.world_size
    with explaining_out_of_memory(module):
        trainer.fit(
            module, train_dataloaders=loader, val_dataloaders=list(dev), ckpt_path=checkpoint, weights_only=True
        )


@dataclass
class Decoded:
    """The hypotheses of a set.

    Attributes:
        utterances: in the order of the loader.
        unread: (id, reason) of those that could not be read.
        audio_s: seconds of audio decoded.
        seconds: of wall-clock time that this took: reading, features, model and search.
    """

    utterances: list[Utterance] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    audio_s: float = 0.0
    seconds: float = 0.0

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work per second of audio; None where there was no audio."""
        return self.seconds / self.audio_s if self.audio_s else None


def decode_all(
    recogniser: Recogniser,
    decoder: Decoder,
    tokenizer: Tokenizer,
    batches: Iterable[Batch],
    name: str,
    num_utterances: int | None = None,
) -> Decoded:
    """Decode every batch, with a progress bar, on the device that the recogniser is on."""
    device = next(recogniser.parameters()).device
    recogniser.eval()
    decoded, start = Decoded(), time.monotonic()
    # standard output is for results
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"decoding {name}", total=num_utterances)
        for batch in batches:
            decoded.unread.extend(batch.skipped)
            if len(batch):
                decoded.utterances.extend(decode(recogniser, decoder, tokenizer, batch.to(device)))
            decoded.audio_s += batch.audio_s
            progress.advance(task, len(batch) + len(batch.skipped))
    decoded.seconds = time.monotonic() - start
    return decoded


def default_device() -> torch.device:
    """Return the accelerator where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
