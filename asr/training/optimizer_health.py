"""How far each group of parameters moves, logged every so many updates."""

from __future__ import annotations

from typing import Any, Protocol

import lightning.pytorch as pl
from torch.optim import Optimizer


class Measurement(Protocol):
    """Watches the steps of an optimizer from outside."""

    def take(self) -> dict[str, float]:
        """Return the numbers of the last measured step, once; nothing where there is none since."""

    def remove(self) -> None:
        """Stop watching."""


class MeasurementFactory(Protocol):
    """Begins to measure every so many steps of an optimizer that has made ``num_steps``."""

    def __call__(self, optimizer: Optimizer, *, every: int, num_steps: int) -> Measurement:
        """Return what has begun."""


class OptimizerHealth(pl.Callback):
    """Gives what an optimizer's steps are measured to be to all loggers; what is trained stays the same, bit for bit.

    Measured are the updates that `every` divides, also behind a resumption.

    Args:
        measure: optimizer → measurement.
        every: measure one update in so many; null measures none.

    Raises:
        ValueError: ``every`` is below 1.
    """

    def __init__(self, measure: MeasurementFactory, every: int | None = None) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1, or null to measure nothing, given {every}")
        self.measure, self.every = measure, every
        self.measurement: Measurement | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin, in the process that logs."""
        if self.every is not None and trainer.is_global_zero:
            self.measurement = self.measure(trainer.optimizers[0], every=self.every, num_steps=trainer.global_step)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log what was measured under the number that the update's loss has.

        Lightning itself would repeat the numbers at every update, and drop them where it does not log.
        """
        numbers = self.measurement.take() if self.measurement is not None else {}
        for logger in trainer.loggers if numbers else ():
            logger.log_metrics(numbers, step=trainer.global_step - 1)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the optimizer as it was found."""
        if self.measurement is not None:
            self.measurement.remove()
            self.measurement = None
