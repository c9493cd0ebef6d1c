"""What is seen on the terminal while a model trains."""

from __future__ import annotations

import time
from typing import Any

import lightning.pytorch as pl
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from asr.console import PlainConsole
from asr.data.loading.batch import Batch
from asr.training.module import TrainingModule
from asr.training.processes import gather

REPORT_EVERY_S = 30.0


class TrainingProgress(pl.Callback):
    """A bar over the updates of a run: loss, WER, speed and the time left; plain lines where there is no terminal."""

    def __init__(self) -> None:
        self.console = PlainConsole()
        self.bar: Progress | None = None
        self.task: Any = None
        self.last_report = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the bar."""
        self.last_report = time.monotonic()
        if not trainer.is_global_zero or not self.console.is_terminal:
            return
        self.bar = Progress(
            TextColumn("update"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.bar.add_task("train", total=trainer.max_steps, completed=trainer.global_step, numbers="")
        self.bar.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Advance the bar, or report a line from time to time."""
        if self.bar is not None:
            self.bar.update(self.task, completed=trainer.global_step, numbers=self._numbers(trainer))
        elif trainer.is_global_zero and time.monotonic() - self.last_report > REPORT_EVERY_S:
            self._line(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the error rates."""
        if trainer.is_global_zero and not trainer.sanity_checking:
            self._line(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the bar."""
        self._close()
        assert isinstance(pl_module, TrainingModule)
        # each process names what it has seen; every epoch counts an utterance again
        names = {cut for named in gather(pl_module.unreadable.named) for cut in named}
        if trainer.is_global_zero and names:
            self.console.print(f"{len(names)} utterances could not be read and were left out of training.")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Close the bar, so that an error is readable."""
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _line(self, trainer: pl.Trainer) -> None:
        self.last_report = time.monotonic()
        self.console.print(f"update {trainer.global_step}/{trainer.max_steps}  {self._numbers(trainer)}")

    def _numbers(self, trainer: pl.Trainer) -> str:
        metrics = trainer.callback_metrics
        parts = [f"loss {float(metrics['train/loss']):.3f}"] if "train/loss" in metrics else []
        parts += [
            f"{name.removeprefix('val/')} {100 * float(value):.2f} %"
            for name, value in metrics.items()
            if name.endswith("/wer") and name != "val/wer"
        ]
        if "train/audio_s_per_s" in metrics:
            parts.append(f"{float(metrics['train/audio_s_per_s']):.0f} audio s/s")
        return "  ".join(parts)
