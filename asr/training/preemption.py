"""A machine that is taken away: training writes a checkpoint and leaves with a code that says "start me again"."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint

from asr.signals import ENDING, TRY_AGAIN, heeded, leave_closed_terminal
from asr.training.boundaries import ends_update, is_last_update, validates_next
from asr.training.saving import Checkpoints

EXIT_CODE = TRY_AGAIN


class Preempted(SystemExit):
    """Ends the process; not an error, so that nothing on the way out takes it for one."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


class Preemption(Checkpoint):
    """Ends training after a signal of ``ENDING``: behind the update in hand, with a checkpoint and exit code 75.

    With several processes, one that was told is enough: all ask each other at the end of every update. A validation is
    left at once, and begun again by who resumes; only several processes, which validate at different speeds, end it
    first, and so does the last one of a training.

    A kind of ``Checkpoint``, because Lightning runs these behind all that has something to save.
    """

    def __init__(self) -> None:
        self.heeded = heeded()
        self.received: signal.Signals | None = None
        self.leaving = False
        self.written: Path | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen, in place of Lightning: under SLURM it requeues by itself, and its handler waits for other processes.

        It puts back the handlers of before at the end of the training.
        """
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                signal.signal(number, self._note if number in self.heeded else signal.SIG_IGN)

    def _note(self, number: int, _: Any) -> None:
        leave_closed_terminal()
        self.received = signal.Signals(number)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Agree on leaving; save, unless a validation comes next, which would be left out by who resumes."""
        if not ends_update(trainer):
            return
        self._agree(trainer)
        if self.leaving and not validates_next(trainer):
            self._save(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave before a validation."""
        self._leave_validation(trainer)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Leave in the middle of a validation, where nobody else is to be asked."""
        if trainer.world_size == 1 and not trainer.sanity_checking:
            self._agree(trainer)
            self._leave_validation(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Agree on leaving, before the next update."""
        if not trainer.sanity_checking:
            self._agree(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Leave; only now, because the numbers of an update are logged behind its end."""
        self._leave(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave where no other micro-batch follows."""
        self._leave(trainer)

    def _agree(self, trainer: pl.Trainer) -> None:
        told = self.received is not None
        self.leaving = self.leaving or trainer.strategy.reduce_boolean_decision(told, all=False)

    def _leave_validation(self, trainer: pl.Trainer) -> None:
        # a training that was resumed behind its last update would not validate
        if self.leaving and not is_last_update(trainer):
            self._save(trainer, validation_is_ahead=True)
            self._leave(trainer)

    def _save(self, trainer: pl.Trainer, validation_is_ahead: bool = False) -> None:
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, Checkpoints):
                self.written = callback.save(trainer, validation_is_ahead)

    def _leave(self, trainer: pl.Trainer) -> None:
        if not self.leaving:
            return
        if self.written is None:
            self._save(trainer)  # names what was saved at the end of a validation
        raise Preempted

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Say where training was left, when the progress bar is closed."""
        if not isinstance(exception, Preempted) or not trainer.is_global_zero:
            return
        told = f"received {self.received.name}" if self.received else "another process received a signal"
        where = "without a checkpoint: callbacks.checkpoints is null"
        if self.written is not None:
            where = f"saved as {self.written}; to go on: asr-train resume={self.written.parents[1]}"
        print(f"{told}: left behind update {trainer.global_step} with exit code {EXIT_CODE}, {where}", file=sys.stderr)
