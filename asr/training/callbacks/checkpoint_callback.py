"""When checkpoints are written, and which are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn
from pydantic import PositiveInt
from torch.nn.utils import get_total_norm

from asr.errors import Diverged
from asr.training.checkpoints.files import (
    duplicate,
    explaining_failed_writes,
    point_link,
    prune_checkpoints,
    remove_temporary,
    update_file,
    write,
)
from asr.training.loop_counters import (
    count_by_updates,
    ends_update,
    is_last_update,
    mark_ended,
    mark_validating,
    validates_next,
)
from asr.training.optimizer_protocols import at_evaluation_point

SCORE = "val/wer"


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints for Lightning, whose own writer goes through ``/tmp``: moving from there is copying.

    Args:
        content: of the checkpoint to resume from, if it has been read already; nothing of it is kept.
    """

    def __init__(self, content: dict[str, Any] | None = None) -> None:
        self.content = content

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the content that is known, whatever file is named, or read the file."""
        if self.content is None:
            return super().load_checkpoint(path, *args, **kwargs)
        content, self.content = self.content, None
        return content

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint; called on the first process."""
        write(checkpoint, Path(path))


class CheckpointCallback(Checkpoint):
    """Writes ``update-<number>.ckpt`` after validations and at the end; ``last.ckpt`` and ``best.ckpt`` link to one.

    ``best.ckpt`` has the lowest mean WER on the development sets; of equals the later one, which the schedule has
    brought further. Each update is written once. ``last.ckpt`` is moved when everything else is in place: a run that
    was killed in between resumes from the older checkpoint, and repeats the same updates.

    Args:
        run_dir: folder of the run.
        keep_last: number of checkpoints to keep besides the best.
        every_n_updates: save this often too; null: only after validations.
    """

    def __init__(self, run_dir: Path, keep_last: PositiveInt = 2, every_n_updates: PositiveInt | None = None) -> None:
        self.folder = run_dir / "checkpoints"
        self.keep_last, self.every_n_updates = keep_last, every_n_updates
        self.saved_update: int | None = None
        self.best_update: int | None = None
        self.best_wer = float("inf")
        self.validation_is_next = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Replace Lightning's writer, and remove what a killed process left."""
        if not isinstance(trainer.strategy.checkpoint_io, DurableCheckpointIO):
            trainer.strategy.checkpoint_io = DurableCheckpointIO()  # on every rank: all take part in saving
        if trainer.is_global_zero:
            with explaining_failed_writes(self.folder.parent):
                self.folder.mkdir(parents=True, exist_ok=True)
                remove_temporary(self.folder)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Save at every n-th update and at the last one, unless a validation follows, which saves too."""
        every = self.every_n_updates
        due = is_last_update(trainer) or (every is not None and trainer.global_step % every == 0)
        if due and ends_update(trainer) and not validates_next(trainer):
            self.save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save, and remember the best."""
        # Lightning's sanity check validates a few batches before the first update
        if trainer.sanity_checking or trainer.state.fn is not TrainerFn.FITTING:
            return
        wer = float(trainer.callback_metrics.get(SCORE, float("inf")))
        if wer <= self.best_wer:
            self.best_wer, self.best_update = wer, trainer.global_step
        self.save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save a run that was stopped without a validation."""
        self.save(trainer)

    def save(self, trainer: pl.Trainer, validation_is_next: bool = False) -> Path:
        """Write a checkpoint of the current update, unless it is written already; called by every process.

        Args:
            trainer: Lightning's trainer.
            validation_is_next: the validation of this update has begun; the resumed run starts it again.

        Returns:
            The file.

        Raises:
            RunFailed: it cannot be written; earlier checkpoints are unchanged.
            Diverged: the weights are not finite; earlier checkpoints are unchanged.
        """
        update = trainer.global_step
        path = update_file(self.folder, update)
        if update != self.saved_update:
            # one reduction for all parameters; a loop of isfinite() would wait for the device at each
            largest = get_total_norm(list(trainer.lightning_module.parameters()), norm_type=float("inf"))
            if not largest.isfinite():
                raise Diverged(
                    f"the model has diverged: after update {update} its weights are not finite; lower optimizer.lr, or "
                    "warm up longer, and start a new run; earlier checkpoints are unchanged"
                )
            # before the state is saved: the resumed run must not write this update again
            self.saved_update = None if validation_is_next else update
            self.validation_is_next = validation_is_next
            # decoding needs the weights for evaluation
            with explaining_failed_writes(self.folder.parent), at_evaluation_point(trainer.optimizers):
                # Lightning's weights_only=True leaves out the optimizer (it is not torch.load's option of this name)
                trainer.save_checkpoint(path, weights_only=False)
                if trainer.is_global_zero:
                    if update == self.best_update:
                        duplicate(path, self.folder / "best.ckpt")
                    point_link(self.folder / "last.ckpt", path)  # before pruning: it may lead to what is removed
                    prune_checkpoints(self.folder, update, self.keep_last)
        return path

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Correct Lightning's counters, so that the resumed run starts at the right place."""
        mark_ended(checkpoint)
        if self.validation_is_next:
            mark_validating(checkpoint)

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Let validations follow whole updates if these have another number of micro-batches now."""
        count_by_updates(checkpoint, trainer.accumulate_grad_batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the last update saved, and the best."""
        return {"saved_update": self.saved_update, "best_update": self.best_update, "best_wer": self.best_wer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the last update saved, and the best."""
        self.saved_update, self.best_update = state_dict["saved_update"], state_dict["best_update"]
        self.best_wer = state_dict["best_wer"]
