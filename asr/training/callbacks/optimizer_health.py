"""Logs how far each group of parameters moves."""

from __future__ import annotations

from typing import Any, Protocol

import lightning.pytorch as pl
from pydantic import PositiveInt
from torch.optim import Optimizer


class Measurement(Protocol):
    """Observes the steps of an optimizer."""

    def take(self) -> dict[str, float]:
        """Return the numbers of the last measured step, once; empty if no step was measured since."""

    def remove(self) -> None:
        """Stop observing."""


class MeasurementFactory(Protocol):
    """Starts to measure every n-th step of an optimizer that has made ``num_steps`` so far."""

    def __call__(self, optimizer: Optimizer, *, every: int, num_steps: int) -> Measurement:
        """Return the running measurement."""


class OptimizerHealth(pl.Callback):
    """Measures an optimizer's steps and logs the numbers; the weights stay the same, bit for bit.

    Args:
        measure: optimizer → measurement.
        every: measure the updates that this number divides, also in a resumed run; null: none.
    """

    def __init__(self, measure: MeasurementFactory, every: PositiveInt | None = None) -> None:
        self.measure, self.every = measure, every
        self.measurement: Measurement | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start, in the process that logs."""
        if self.every is not None and trainer.is_global_zero:
            self.measurement = self.measure(trainer.optimizers[0], every=self.every, num_steps=trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Log what was measured, with the step of the update's loss.

        ``self.log`` would repeat the numbers at every update, and drop them at updates that Lightning does not log.
        """
        numbers = self.measurement.take() if self.measurement is not None else {}
        for logger in trainer.loggers if numbers else ():
            logger.log_metrics(numbers, step=trainer.global_step - 1)  # Lightning counts the loggers' step from 0

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the hooks from the optimizer."""
        if self.measurement is not None:
            self.measurement.remove()
            self.measurement = None
