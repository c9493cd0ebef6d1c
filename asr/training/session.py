"""A training and an evaluation, from built parts to hypotheses."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from rich.progress import Progress

from asr.console import PlainConsole, bar_title
from asr.data.loading.batch import Batch
from asr.data.loading.loader import EvaluationLoader
from asr.error_text import first_line, is_out_of_memory
from asr.evaluation.wer import Utterance
from asr.models.recogniser import Recogniser
from asr.text.tokenizer import Tokenizer
from asr.training.errors import TrainingFailed
from asr.training.lost_workers import explaining_lost_workers
from asr.training.module import Decoder, TrainingModule, decode
from asr.training.out_of_memory import explaining_out_of_memory, when_decoding, when_reading, when_training
from asr.training.resume import ResumableLoader
from asr.training.resume_checks import check_optimizer, check_schedule
from asr.training.stopping import refuse_end_without_update


def fit(
    trainer: pl.Trainer,
    module: TrainingModule,
    loader: ResumableLoader,
    dev: Sequence[EvaluationLoader],
    checkpoint: Path | None = None,
) -> None:
    """Train until ``trainer.max_steps`` updates, from the beginning or after a checkpoint.

    Raises:
        ValueError: the checkpoint does not fit.
        TrainingFailed: training cannot continue.
    """
    loader.trainer = trainer
    for part in dev:
        part.rank, part.world_size = trainer.global_rank, trainer.world_size
    begun = _Begun()
    trainer.callbacks.insert(0, begun)  # type: ignore[attr-defined]
    out_of_memory = explaining_out_of_memory(lambda: when_training(module.in_hand))
    with out_of_memory, _naming_checkpoint(begun, checkpoint), explaining_lost_workers():
        try:
            trainer.fit(
                module, train_dataloaders=loader, val_dataloaders=list(dev), ckpt_path=checkpoint, weights_only=True
            )
        except SystemExit as left:
            # Lightning (2.6) ends the program with 1 after a Ctrl-C, and says so to a log that is silenced here
            if trainer.interrupted and left.code == 1:
                raise KeyboardInterrupt from None
            raise
        except MisconfigurationException as error:
            # what callbacks of Lightning miss in a trainer, such as a logger
            raise Misconfigured(first_line(error)) from error
    refuse_end_without_update(trainer, begun.first_update)


class Misconfigured(ValueError):
    """Parts of a run that do not work together."""


class _Begun(pl.Callback):
    """Checks what is restored, and notes how far training has come."""

    def __init__(self) -> None:
        self.started = self.updated = False
        self.first_update = 0
        self.schedules: Sequence[Any] = ()

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the states of schedules, which replace whatever bears their names."""
        self.schedules, self.first_update = checkpoint["lr_schedulers"], checkpoint["global_step"]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare them with what was built, and is not restored yet."""
        for saved, built in zip(self.schedules, trainer.lr_scheduler_configs, strict=False):
            check_schedule(saved, built.scheduler.state_dict())

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check what was restored."""
        for optimizer in trainer.optimizers if self.first_update else ():
            check_optimizer(optimizer)
        self.started = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """They were good for an update."""
        self.updated = True


@contextlib.contextmanager
def _naming_checkpoint(begun: _Begun, checkpoint: Path | None) -> Iterator[None]:
    """Name the checkpoint whose states cannot be restored, or not be used for a single update.

    What is in them depends on the optimizer, the schedule and the callbacks, so that they alone can tell.
    """
    if checkpoint is None:
        yield
        return
    try:
        yield
    except (TrainingFailed, OSError, Misconfigured):
        raise
    except Exception as error:
        # once training has started, data may be wrong too, and their errors name them
        if begun.updated or is_out_of_memory(error) or (begun.started and isinstance(error, ValueError)):
            raise
        raise ValueError(
            f"resume: {checkpoint} does not fit the run that it is in: {type(error).__name__}: {first_line(error)}; "
            "move it away to resume from the one before"
        ) from error


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
    """Decode every batch, with a progress bar, on the device that the recogniser is on.

    Raises:
        OutOfMemory: a batch does not fit into memory.
    """
    device = next(recogniser.parameters()).device
    recogniser.eval()
    decoded, start = Decoded(), time.monotonic()
    # standard output is for results
    bar = Progress(console=PlainConsole(stderr=True), transient=True)
    with explaining_out_of_memory(lambda: when_reading(name)), explaining_lost_workers(), bar as progress:
        task = progress.add_task(bar_title(f"decoding {name}"), total=num_utterances)
        for batch in batches:
            decoded.unread.extend(batch.skipped)
            if len(batch):
                with explaining_out_of_memory(partial(when_decoding, batch)):
                    decoded.utterances.extend(decode(recogniser, decoder, tokenizer, batch.to(device)))
            decoded.audio_s += batch.audio_s
            progress.advance(task, len(batch) + len(batch.skipped))
    decoded.seconds = time.monotonic() - start
    return decoded


def default_device() -> torch.device:
    """Return the accelerator where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
