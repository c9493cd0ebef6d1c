"""Ends a preempted or interrupted run: saves a checkpoint, and exits with a code that says which."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint

from asr.processes import ENDING, TRY_AGAIN, leave_closed_terminal, not_ignored
from asr.run_folder import resume_command
from asr.training.callbacks.checkpoint_callback import CheckpointCallback
from asr.training.loop_counters import ends_update, is_last_update, validates_next


class Preempted(SystemExit):
    """Ends the process; a SystemExit, so that no handler of errors catches it."""

    def __init__(self) -> None:
        super().__init__(TRY_AGAIN)


class Preemption(Checkpoint):
    """Ends a run after a signal of ``ENDING``: after the current update, with a checkpoint and exit code 75.

    Ctrl-C does the same, but ends in a KeyboardInterrupt that says what was saved; a second one does so at once.

    Of several processes, one signaled is enough: they all agree at the end of every update. A validation ends at once,
    and the resumed run repeats it. Two kinds of validation are completed first: the last one of a run, and any of
    several processes, which validate at different speeds.

    A subclass of ``Checkpoint``, because Lightning (2.6) calls these after all other callbacks, which have then updated
    the state that is saved.
    """

    def __init__(self) -> None:
        self.not_ignored = not_ignored((signal.SIGINT, *ENDING))
        self.received: signal.Signals | None = None
        self.interrupted = False
        self.leaving = False
        self.written: Path | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Replace Lightning's signal handlers: under SLURM they requeue the job, and wait for the other processes.

        Lightning restores the previous handlers at the end of ``fit``.
        """
        if threading.current_thread() is threading.main_thread():  # signal.signal() raises in others
            for number in (signal.SIGINT, *ENDING):
                signal.signal(number, self._note if number in self.not_ignored else signal.SIG_IGN)  # as under nohup

    def _note(self, number: int, _: Any) -> None:
        leave_closed_terminal()
        if number == signal.SIGINT:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True
            if os.environ.get("LOCAL_RANK", "0") == "0":
                with contextlib.suppress(OSError):  # a print could interrupt another one
                    os.write(2, b"\nasr-train: saves after this update, then ends; Ctrl-C again ends at once\n")
        self.received = self.received or signal.Signals(number)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Agree on leaving, and save, unless a validation follows: the resumed run would leave it out."""
        if not ends_update(trainer):
            return
        self._agree(trainer)
        if self.leaving and not validates_next(trainer):
            self._save(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave before a validation."""
        self._leave_validation(trainer)

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Leave in the middle of a validation, if this is the only process."""
        # one rank could be in another batch than the others, and wait for them forever
        if trainer.world_size == 1 and not trainer.sanity_checking:
            self._agree(trainer)
            self._leave_validation(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Agree on leaving, before the next update."""
        if not trainer.sanity_checking:
            self._agree(trainer)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Leave; not earlier, because Lightning logs the numbers of an update after its end."""
        self._leave(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave if no other micro-batch follows."""
        self._leave(trainer)

    def _agree(self, trainer: pl.Trainer) -> None:
        signaled = self.received is not None
        self.leaving = self.leaving or trainer.strategy.reduce_boolean_decision(signaled, all=False)  # any rank

    def _leave_validation(self, trainer: pl.Trainer) -> None:
        # a run that is resumed after its last update ends without this validation
        if self.leaving and not is_last_update(trainer):
            self._save(trainer, validation_is_next=True)
            self._leave(trainer)

    def _save(self, trainer: pl.Trainer, validation_is_next: bool = False) -> None:
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, CheckpointCallback):
                self.written = callback.save(trainer, validation_is_next)

    def _leave(self, trainer: pl.Trainer) -> None:
        if not self.leaving:
            return
        if self.written is None:
            self._save(trainer)  # gives the path of what was saved at the end of a validation
        if self.received == signal.SIGINT and trainer.world_size == 1:
            raise KeyboardInterrupt(self._where_interrupted(trainer))
        raise Preempted  # of several processes, this one says what was saved

    def _where_interrupted(self, trainer: pl.Trainer) -> str:
        saved = "not saved: callbacks.checkpoints is null"
        if self.written is not None:
            saved = f"saved; resume with: {resume_command(self.written.parents[1])}"
        return f" at update {trainer.global_step}, {saved}"

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Print where the run ended; the progress bar is closed by now."""
        if not isinstance(exception, Preempted) or not trainer.is_global_zero:
            return
        if self.received == signal.SIGINT:
            print(f"asr-train: interrupted{self._where_interrupted(trainer)}", file=sys.stderr)
            return
        why = f"received {self.received.name}" if self.received else "another process received a signal"
        where = "without a checkpoint: callbacks.checkpoints is null"
        if self.written is not None:
            where = f"saved as {self.written}; to resume: {resume_command(self.written.parents[1])}"
        print(f"{why}: stopped after update {trainer.global_step} with exit code {TRY_AGAIN}, {where}", file=sys.stderr)
