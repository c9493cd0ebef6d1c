"""Updates averages of the weights after each step, and stores them in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from pydantic import PositiveInt
from torch import Tensor

from asr.console import console
from asr.options import Probability
from asr.training.checkpoints.loading import AVERAGES
from asr.training.loop_counters import ends_update
from asr.training.module import TrainingModule
from asr.training.optimizer_protocols import at_evaluation_point
from asr.training.running_averages import RunningAverages


class WeightAveraging(pl.Callback):
    """Averages the parameters of the recognizer; training and validation use the raw weights.

    An update that was skipped counts too, with the unchanged weights. Raw weights are those for evaluation, also with
    an optimizer that trains elsewhere (`asr.training.optimizer_protocols`). Every process averages its own copy of the
    weights; all copies are equal.

    Args:
        every: average only the updates that this number divides.
        ema_decay: of the exponential moving average, per update; null: no moving average.
    """

    def __init__(self, every: PositiveInt = 1, ema_decay: Probability | None = 0.9999) -> None:
        self.every, self.ema_decay = every, ema_decay
        self.restored: Mapping[str, Any] | None = None
        self.averages: RunningAverages | None = None
        self.weights: dict[str, Tensor] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start new averages, or restore those of the checkpoint."""
        # here, not in on_load_checkpoint: only now are the weights on their device
        assert isinstance(pl_module, TrainingModule)
        # shared parameters under each of their names; buffers, and what checkpoints leave out, are not averaged
        named, unsaved = pl_module.recognizer.named_parameters(remove_duplicate=False), pl_module.recognizer.unsaved
        self.weights = {name: parameter for name, parameter in named if name not in unsaved}
        if self.restored is not None:
            device = next(iter(self.weights.values())).device
            self.averages, self.restored = RunningAverages.from_state(self.restored, device), None
            return
        self.averages = RunningAverages(self.weights, trainer.global_step)
        if trainer.global_step and trainer.is_global_zero:
            console.print(f"the checkpoint has no averages of weights: they start after update {trainer.global_step}")

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Add the weights after an update."""
        assert self.averages is not None
        update = trainer.global_step
        # Lightning calls this after each micro-batch, global_step counts updates
        if ends_update(trainer) and update % self.every == 0:
            with at_evaluation_point(trainer.optimizers):
                self.averages.add(update, self.weights, self.ema_decay, self.every)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Add the averages."""
        if self.averages is not None:
            checkpoint[AVERAGES] = self.averages.state_dict()

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Keep them until the weights are on their device."""
        self.restored = checkpoint.get(AVERAGES)
