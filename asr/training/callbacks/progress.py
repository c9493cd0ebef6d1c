"""The progress of a run on the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from torch.optim import Optimizer

from asr.console import LINE_EVERY_S, console
from asr.models import devices
from asr.plain_data import at
from asr.training.module import TrainingModule
from asr.training.optimizer_protocols import members_of
from asr.training.processes import gather

FIRST_REPORT_S = 5.0  # before the first estimate of the remaining time, while the user still watches
NUMBERS_EVERY_S = 0.5  # in the bar: to read the loss is to wait for the GPU


class TrainingProgress(pl.Callback):
    """A bar over the updates of a run with loss, WER, speed and the time left; plain lines without a terminal.

    A run begins with a line about each parameter group.
    """

    def __init__(self) -> None:
        self.bar: Progress | None = None
        self.task: Any = None
        self.last_report, self.wait_s = 0.0, FIRST_REPORT_S
        self.start = (0, 0.0)  # update and time when this process began to train

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Name the parameter groups, and open the bar."""
        self.last_report = time.monotonic()
        self.start = trainer.global_step, self.last_report
        options = at(getattr(pl_module, "extra_state", {}), "config", "optimizer")
        groups = describe_groups(trainer.optimizers[0], options)
        for line in groups if trainer.is_global_zero and (len(groups) > 1 or options) else ():
            console.print_line(line)
        if not trainer.is_global_zero or not console.is_terminal:  # a log file would hold every frame of the bar
            return
        self.bar = Progress(
            TextColumn("update"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),  # a set may be called [red]
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task("train", total=trainer.max_steps, completed=trainer.global_step, numbers="")
        self.bar.start()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Advance the bar, or print a line from time to time."""
        if self.bar is not None:
            self.bar.update(self.task, completed=trainer.global_step)
            if time.monotonic() - self.last_report > NUMBERS_EVERY_S:
                self.last_report = time.monotonic()
                self.bar.update(self.task, numbers=self._numbers(trainer))
        elif trainer.is_global_zero and time.monotonic() - self.last_report > self.wait_s:
            self._line(trainer)
            self.wait_s = LINE_EVERY_S

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Say from time to time that a long validation is at work."""
        if self.bar is None and trainer.is_global_zero and time.monotonic() - self.last_report > LINE_EVERY_S:
            self.last_report = time.monotonic()
            console.print(f"update {trainer.global_step}/{trainer.max_steps}  validating, batch {batch_idx + 1}")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the error rates."""
        if trainer.is_global_zero and not trainer.sanity_checking:
            self._line(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the bar."""
        self.on_exception(trainer, pl_module)
        assert isinstance(pl_module, TrainingModule)
        # names, not the counter train/unreadable: that one counts an utterance again in every epoch
        names = {cut for named in gather(pl_module.unreadable.named) for cut in named}
        if trainer.is_global_zero and names:
            console.print(f"{len(names)} utterances could not be read and were left out of training or validation.")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Close the bar: an error printed below it would be overwritten."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _line(self, trainer: pl.Trainer) -> None:
        self.last_report = time.monotonic()
        line = f"update {trainer.global_step}/{trainer.max_steps}  {self._numbers(trainer)}"
        first_update, start = self.start
        if first_update < trainer.global_step < trainer.max_steps:
            pace_s = (self.last_report - start) / (trainer.global_step - first_update)
            line += f"  {describe_time(pace_s * (trainer.max_steps - trainer.global_step))} left"
        console.print(line)

    def _numbers(self, trainer: pl.Trainer) -> str:
        metrics = trainer.callback_metrics  # the newest value of each
        parts = [f"loss {float(metrics['train/loss']):.3f}"] if "train/loss" in metrics else []
        parts += [
            f"{name.removeprefix('val/')} {100 * float(value):.2f} %"
            for name, value in metrics.items()
            if name.endswith("/wer") and name != "val/wer"
        ]
        if "train/audio_s_per_s" in metrics:
            parts.append(f"{float(metrics['train/audio_s_per_s']):.0f} audio s/s")
        return "  ".join(parts)


def describe_time(seconds: float) -> str:
    """Return a duration in the unit that fits it: 45 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def describe_groups(optimizer: Optimizer, options: Mapping[str, Any] | None = None) -> list[str]:
    """Return a line about each parameter group: its optimizer, size, lr before a schedule, and options that differ.

    Options are named if another group of the same optimizer has another value.

    Args:
        optimizer: of a run.
        options: that the config gives it, with its class in ``_target_``; None: not known.
    """
    stepped = getattr(optimizer, "optimizer", optimizer)  # if it steps another one in the backward pass
    without_lr = "" if options is None or "lr" in options else str(options["_target_"]).rpartition(".")[2]
    lines = []
    for member in members_of(stepped):
        # a schedule has set the lr of the first update already
        groups = [{**group, "lr": group.get("initial_lr", group.get("lr"))} for group in member.param_groups]
        for group in groups:
            line = f"{type(member).__name__}: {len(group['params'])} tensors"
            line += f", {sum(p.numel() for p in group['params']):,} parameters"
            for name in member.defaults:
                value = group.get(name)
                if name == "lr" or any(other.get(name) != value for other in groups):
                    # a rate may be a tensor on the device
                    plain = devices.to_host(value) if isinstance(value, Tensor) else value
                    line += f", {name} {plain:g}" if isinstance(plain, float) else f", {name} {plain}"
                if name == "lr" and type(member).__name__ == without_lr:
                    line += " (its default)"
            lines.append(line)
    return lines
