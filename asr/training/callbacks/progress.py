"""Callbacks that print: progress, parameter groups, warnings of a stalled run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from inspect import signature
from typing import Any

import lightning.pytorch as pl
import torch
from pydantic import PositiveInt
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from torch.optim import Optimizer

from asr.models import devices
from asr.run.options import SavedOptimizer
from asr.training.module import TrainingModule
from asr.training.optimizer_protocols import members_of
from asr.training.processes import gather
from werdict.console import LINE_EVERY_S, console
from werdict.files import get_nested
from werdict.scoring import Score

FIRST_REPORT_S = 5.0  # before the first estimate of the remaining time, while the user still watches
NUMBERS_EVERY_S = 0.5  # in the bar: to read the loss is to wait for the GPU
NOT_BETTER = 1e-3  # a loss that is lower by less than this share has not improved
SPAN_SHARE, MIN_SPAN = 5, 200  # the loss may be flat for a fifth of the updates, and for 200
# how what `TrainingCost` measures is shown
SPEED = {
    "train/audio_s_per_s": "{:.0f} audio s/s",
    "train/padding": "padding {:.0%}",
    "train/data_wait": "waiting for data {:.0%}",
    "train/peak_gpu_memory_mb": "GPU memory {:.0f} MB",
    "train/mfu": "MFU {:.0%}",
}
STUCK = (
    "optimizer.lr is too high (try a third of it) or too low (try three times it), the warm-up of the schedule is too "
    "short or too long, transcripts do not belong to their audio, or the encoder leaves fewer frames than there are "
    "tokens (a larger data.vocab_size makes fewer tokens)"
)
EARLY = "it emits blanks, or the most common tokens, until it finds an alignment, usually by about update"
MISMATCH = (
    "hypotheses and references are written differently (tokenizer, data.text: case, punctuation), or dev is another "
    "language or task than train"
)


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
        saved = get_nested(getattr(pl_module, "extra_state", {}), "config", "optimizer")
        options = None if saved is None else SavedOptimizer.model_validate(saved)
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
        console.print_line(line)

    def _numbers(self, trainer: pl.Trainer) -> str:
        metrics = trainer.callback_metrics  # the newest value of each
        parts = [f"loss {float(metrics['train/loss']):.3f}"] if "train/loss" in metrics else []
        parts += [
            f"{name.removeprefix('val/')} {100 * float(value):.2f} %"
            for name, value in metrics.items()
            if name.endswith("/wer") and name != "val/wer"
        ]
        parts += [SPEED[name].format(float(metrics[name])).replace("%", " %") for name in SPEED if name in metrics]
        return "  ".join(parts)


def describe_time(seconds: float) -> str:
    """Return a duration in the unit that fits it: 45 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def describe_groups(optimizer: Optimizer, options: SavedOptimizer | None = None) -> list[str]:
    """Return a line about each parameter group: its optimizer, size, lr before a schedule, and options that differ.

    Options are named if another group of the same optimizer has another value.

    Args:
        optimizer: of a run.
        options: that the config gives it; None: not known.
    """
    stepped = getattr(optimizer, "optimizer", optimizer)  # if it steps another one in the backward pass
    without_lr = "" if options is None or options.lr is not None else str(options.target).rpartition(".")[2]
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
                if name == "lr" and type(member).__name__ == without_lr and "lr" in signature(type(member)).parameters:
                    line += " (its default)"
            lines.append(line)
    return lines


@dataclass
class LossTrend:
    """The mean loss of windows of updates, and the best of these means.

    Attributes:
        total: sum of the finite losses in the current window; those of updates that were left out need not be finite.
        num_finite: number of these losses.
        num: number of all losses in it.
        mean: mean loss of the last full window.
        best: the lowest mean that was clearly lower than the one before it.
        best_update: last update of its window.
    """

    total: Any = 0.0
    num_finite: Any = 0
    num: int = 0
    mean: float = math.inf
    best: float = math.inf
    best_update: int = 0

    def add(self, update: int, loss: Tensor, window: int) -> None:
        """Add the loss () of an update, which is read only at the end of a window: reading it waits for its device."""
        is_finite = loss.isfinite()
        self.total = self.total + loss.where(is_finite, 0.0)
        self.num_finite, self.num = self.num_finite + is_finite, self.num + 1
        if self.num < window:
            return
        total, num_finite = devices.to_host(torch.stack([self.total, self.num_finite]))
        self.total, self.num_finite, self.num = 0.0, 0, 0
        if num_finite:
            self.mean = total / num_finite
        if self.best == math.inf or self.mean < self.best - NOT_BETTER * abs(self.best):
            self.best, self.best_update = self.mean, update


class StallWarning(pl.Callback):
    """Warns of constant output, a WER that stays at 100 % or more, and a flat loss, with likely causes.

    Each warning is printed once, and again only if its cause has disappeared in between. It never stops a run.

    Args:
        alignment_updates: CTC has usually found an alignment by then; before, output that is all blank is normal.
        num_validations: warn after this many consecutive validations with a WER of at least 100 %.
        loss_span_updates: warn after this many updates without a lower loss; null: a fifth of the budget, at least 200.
    """

    def __init__(
        self,
        alignment_updates: PositiveInt = 1000,
        num_validations: PositiveInt = 3,
        loss_span_updates: PositiveInt | None = None,
    ) -> None:
        self.alignment_updates, self.num_validations = alignment_updates, num_validations
        self.loss_span_updates = loss_span_updates
        self.found: dict[str, str] = {}  # the last finding of each topic, so that none is printed twice
        self.high_wer: list[float] = []  # mean losses at the last consecutive validations with a WER of 100 % or more
        self.trend = LossTrend()
        self.update = 0  # the last one that was counted

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Check the loss of every update."""
        update, trend = trainer.global_step, self.trend
        if not trainer.is_global_zero or update == self.update or "train/loss" not in trainer.callback_metrics:
            return
        self.update = update  # Lightning calls this after each micro-batch
        span = self.loss_span_updates or max(MIN_SPAN, trainer.max_steps // SPAN_SHARE)
        trend.add(update, trainer.callback_metrics["train/loss"], window=max(1, span // 10))
        num_worse = update - trend.best_update if math.isfinite(trend.best) else 0
        if num_worse < span:
            self._warn("loss", "", "")
        elif not self.found.get("loss"):  # or reading the rate would wait for the device at every update
            lr = float(trainer.callback_metrics["train/lr"])
            self._warn(
                "loss",
                "stuck",
                f"update {update}: the loss has not improved for {num_worse} updates (mean {trend.mean:.3f}, best "
                f"{trend.best:.3f} by update {trend.best_update}; lr now {lr:.3g}). With a good WER, near the end, "
                f"that is normal. Otherwise likely: {STUCK}.",
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the hypotheses and the error rates."""
        assert isinstance(pl_module, TrainingModule)
        if not trainer.is_global_zero or trainer.sanity_checking or not pl_module.scores:
            return
        for name, result in pl_module.scores.items():
            self._check_output(name, result, trainer.global_step)
        self._check_wer(pl_module.scores, trainer.global_step)

    def _check_output(self, name: str, result: Score, update: int) -> None:
        hypotheses = {item.utterance.hypothesis for item in result.utterances}
        references = {item.utterance.reference for item in result.utterances}
        if len(hypotheses) > 1 or len(references) == 1:  # equal references may have equal hypotheses
            return self._warn(f"output of {name}", "", "")
        (hypothesis,) = hypotheses
        output = f"the same, {hypothesis!r}" if hypothesis else "empty"
        age, why = "late", f"Likely: {STUCK}"
        if update < self.alignment_updates:
            age, why = "early", f"Early in training that is normal: {EARLY} {self.alignment_updates}"
        text = f"update {update}: all {len(result.utterances)} hypotheses of {name} are {output}. {why}."
        self._warn(f"output of {name}", f"{age}, {output.partition(',')[0]}", text)

    def _check_wer(self, scores: Mapping[str, Score], update: int) -> None:
        wer, loss = sum(result.wer for result in scores.values()) / len(scores), self.trend.mean
        rate_name = next(iter(scores.values())).rate_name
        self.high_wer = [*self.high_wer, loss][-self.num_validations :] if wer >= 1 else []
        if len(self.high_wer) < self.num_validations:
            return self._warn("wer", "", "")
        first, is_early = self.high_wer[0], update < self.alignment_updates
        falls = loss < first - NOT_BETTER * abs(first)
        trend = f"though the loss falls ({first:.3f} to {loss:.3f})" if falls else "and the loss does not fall"
        normal = f"no alignment is found yet (normal until about update {self.alignment_updates}), or "
        self._warn(
            "wer",
            "early" if is_early else "late",
            f"update {update}: the {rate_name} on dev is {100 * wer:.0f} %, and was at least 100 % at "
            f"{self.num_validations} validations in a row, {trend}. Likely: {normal if is_early else ''}"
            f"{MISMATCH if falls else STUCK}.",
        )

    def _warn(self, topic: str, finding: str, text: str) -> None:
        """Print a warning if its finding is new; an empty finding means that all is well."""
        if finding and self.found.get(topic) != finding:
            console.print_line(text)
        self.found[topic] = finding

    def state_dict(self) -> dict[str, Any]:
        """Return findings and trends so far."""
        sums = {name: float(getattr(self.trend, name)) for name in ("total", "num_finite")}
        return {
            **{name: getattr(self, name) for name in ("found", "high_wer", "update")},
            "trend": {**asdict(self.trend), **sums},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore findings and trends."""
        self.found, self.high_wer, self.update = (state_dict[name] for name in ("found", "high_wer", "update"))
        self.trend = LossTrend(**state_dict["trend"])
