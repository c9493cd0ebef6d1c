"""When checkpoints are written, and which are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from asr.training.boundaries import ends_update, is_last_update, mark_ended, mark_validating, validates_next
from asr.training.checkpoint_checks import count_at
from asr.training.checkpoint_files import (
    DurableFiles,
    duplicate,
    lead_to,
    remove_all_but,
    remove_temporary,
    update_file,
)
from asr.training.errors import explaining_failed_writes

SCORE = "val/wer"


class Checkpoints(Checkpoint):
    """Writes ``update-<number>.ckpt`` at every validation and at the end; ``last.ckpt`` and ``best.ckpt`` lead to them.

    ``best.ckpt`` is the one with the lowest mean WER on the development sets; of equals the later, which the schedule
    has brought further. An update is written once, and ``last.ckpt`` moved when all else is in place: a training that
    was killed in between goes on from the older one, and does the same again.

    Args:
        run_dir: folder of the run.
        keep_last: number of checkpoints to keep beside the best.
        every_n_updates: write one this often too; null: at validations only.
    """

    def __init__(self, run_dir: Path, keep_last: int = 2, every_n_updates: int | None = None) -> None:
        for name, value in (("keep_last", keep_last), ("every_n_updates", every_n_updates)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, given {value}")
        self.folder = run_dir / "checkpoints"
        self.keep_last, self.every_n_updates = keep_last, every_n_updates
        self.saved_update: int | None = None
        self.best_update: int | None = None
        self.best_wer = float("inf")
        self.validation_is_ahead = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take over the writing of files, and clear away what a killed process left."""
        trainer.strategy.checkpoint_io = DurableFiles()
        if trainer.is_global_zero:
            with explaining_failed_writes(self.folder.parent):
                self.folder.mkdir(parents=True, exist_ok=True)
                remove_temporary(self.folder)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save at every n-th update, and at the last one, unless a validation is about to."""
        every = self.every_n_updates
        due = is_last_update(trainer) or (every is not None and trainer.global_step % every == 0)
        if due and ends_update(trainer) and not validates_next(trainer):
            self.save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save, and remember the best."""
        if trainer.sanity_checking or trainer.state.fn is not TrainerFn.FITTING:
            return
        wer = float(trainer.callback_metrics.get(SCORE, float("inf")))
        if wer <= self.best_wer:
            self.best_wer, self.best_update = wer, trainer.global_step
        self.save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save what was stopped without a validation."""
        self.save(trainer)

    def save(self, trainer: pl.Trainer, validation_is_ahead: bool = False) -> Path:
        """Write a checkpoint of where training stands, if there is none yet; called by every process.

        Args:
            trainer: of the training.
            validation_is_ahead: the validation of this update has begun; who resumes begins it again.

        Returns:
            The file.

        Raises:
            TrainingFailed: it cannot be written; the checkpoints until then are as they were.
        """
        update = trainer.global_step
        path = update_file(self.folder, update)
        if update != self.saved_update:
            self.saved_update = None if validation_is_ahead else update
            self.validation_is_ahead = validation_is_ahead
            with explaining_failed_writes(self.folder.parent):
                trainer.save_checkpoint(path, weights_only=False)
                if trainer.is_global_zero:
                    self._publish(path, update)
        return path

    def _publish(self, path: Path, update: int) -> None:
        if update == self.best_update:
            duplicate(path, self.folder / "best.ckpt")
        lead_to(self.folder / "last.ckpt", path)
        remove_all_but(self.folder, update, self.keep_last)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note what is behind, and what is ahead, so that Lightning goes on from there."""
        mark_ended(checkpoint)
        if self.validation_is_ahead:
            mark_validating(checkpoint)

    def state_dict(self) -> dict[str, Any]:
        """Return what was saved, and the best."""
        return {"saved_update": self.saved_update, "best_update": self.best_update, "best_wer": self.best_wer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the best so far."""
        self.saved_update, self.best_update = (
            None if state_dict[name] is None else count_at(state_dict, name) for name in ("saved_update", "best_update")
        )
        self.best_wer = float(state_dict["best_wer"])
