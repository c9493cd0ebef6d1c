"""Logs how far each group of parameters moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from pydantic import PositiveInt


class OptimizerHealth(pl.Callback):
    """Measures an optimizer's steps and logs the numbers; the weights stay the same, bit for bit.

    Args:
        measure: an optimizer, ``every`` and ``num_steps``, which it has made so far → a measurement, whose ``take()``
            returns the numbers of the last measured step once, and ``remove()`` ends it.
        every: measure the updates that this number divides, also in a resumed run; null: none.
    """

    def __init__(self, measure: Callable[..., Any], every: PositiveInt | None = None) -> None:
        self.measure, self.every = measure, every
        self.measurement: Any = None

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
