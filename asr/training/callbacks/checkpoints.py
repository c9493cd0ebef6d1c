"""Callbacks that save: checkpoints, at a signal, and with averaged weights."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn
from pydantic import PositiveInt
from torch import Tensor

from asr.processes import ENDING, TRY_AGAIN, leave_closed_terminal, not_ignored
from asr.ranges import Probability
from asr.run.folder import resume_command
from asr.training import checkpoints as files
from asr.training.checkpoints import AVERAGES, RunningAverages, explaining_failed_writes
from asr.training.fsdp import joined, local_part, part_of, total_norm
from asr.training.lightning_internals import is_validation_due, number_resumed_update
from asr.training.module import TrainingModule, ends_update
from asr.training.optimizer_protocols import in_eval_mode
from asr.training.sharded_checkpoints import Stager
from werdict.console import console
from werdict.errors import Diverged

SCORE = "val/wer"


def is_last_update(trainer: pl.Trainer) -> bool:
    """Return whether all updates of the budget are done."""
    return trainer.global_step >= trainer.max_steps


def validates_next(trainer: pl.Trainer) -> bool:
    """Return whether a validation follows the update that just ended; one always follows the last update."""
    return is_validation_due(trainer) or (trainer.enable_validation and is_last_update(trainer))


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints for Lightning, whose own writer goes through ``/tmp``: moving from there is copying.

    In the background, training waits until the state is copied to memory of the host, and for the checkpoint before.

    Args:
        in_background: whether training continues while a checkpoint is written.

    Attributes:
        content: of the checkpoint to resume from, if it has been read already; nothing of it is kept.
        writing: what is being written in the background, and what follows it.
    """

    def __init__(self, in_background: bool = False) -> None:
        self.content: dict[str, Any] | None = None
        self.writing: Future[object] | None = None
        self.thread = ThreadPoolExecutor(1, "checkpoints") if in_background else None
        self._stager: Stager | None = None

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the content that is known, whatever file is named, or read the file."""
        content, self.content = self.content, None
        return files.read_complete(Path(path)) if content is None else content

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint, or begin to; called on the first process.

        Raises:
            OSError: it cannot be written, or the one before could not be.
        """
        stager = self.stager()
        self.then(partial(files.write, checkpoint if stager is None else stager.stage(checkpoint), Path(path)))

    def stager(self) -> Stager | None:
        """Return what copies a state, when the memory of its last copy is free again; None: nothing is to be copied."""
        self.wait()
        if self.thread is not None and self._stager is None:
            self._stager = Stager()
        return self._stager

    def then(self, step: Callable[[], object]) -> None:
        """Take a step after those before, if they succeed: now, or in the background."""
        before = self.writing
        if self.thread is None:
            step()
        else:
            self.writing = self.thread.submit(lambda: (before and before.result(), step()))

    def wait(self) -> None:
        """Wait until all is on the disk; raise what has failed in the background."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def teardown(self) -> None:
        """Free the memory of copies, when all is on the disk."""
        self.wait()
        if self._stager is not None:
            self._stager.close()
            self._stager = None


def checkpoint_io(trainer: pl.Trainer) -> DurableCheckpointIO:
    """Return what writes the checkpoints of a run."""
    assert isinstance(trainer.strategy.checkpoint_io, DurableCheckpointIO)
    return trainer.strategy.checkpoint_io


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
                files.remove_temporary(self.folder)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Save at every n-th update and at the last one, unless a validation follows, which saves too."""
        every = self.every_n_updates
        due = is_last_update(trainer) or (every is not None and trainer.global_step % every == 0)
        if due and ends_update(trainer) and not validates_next(trainer):
            self.save(trainer)
        if (writing := checkpoint_io(trainer).writing) is not None and writing.done():
            with explaining_failed_writes(self.folder.parent):
                checkpoint_io(trainer).wait()

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
        self.wait(trainer)
        checkpoint_io(trainer).teardown()  # memory that decoding may need; FSDP's strategy (Lightning 2.6) never does

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Complete the checkpoint that is being written; if that fails, the exception says more."""
        with contextlib.suppress(Exception):
            checkpoint_io(trainer).wait()

    def wait(self, trainer: pl.Trainer) -> None:
        """Wait until the checkpoint is on the disk that is being written; called by every process.

        Raises:
            RunFailed: it cannot be written; earlier checkpoints are unchanged.
        """
        with explaining_failed_writes(self.folder.parent):
            checkpoint_io(trainer).wait()
        trainer.strategy.barrier()  # when one process has left, the launcher gives the others 30 s

    def save(self, trainer: pl.Trainer, validation_is_next: bool = False) -> Path:
        """Write a checkpoint of the current update, or begin to, unless that is done; called by every process.

        Args:
            trainer: Lightning's trainer.
            validation_is_next: the validation of this update has begun; the resumed run starts it again.

        Returns:
            The file.

        Raises:
            RunFailed: it, or the one before, cannot be written; earlier checkpoints are unchanged.
            Diverged: the weights are not finite; earlier checkpoints are unchanged.
        """
        update = trainer.global_step
        path = files.update_file(self.folder, update)
        if update != self.saved_update:
            # one reduction for all parameters; a loop of isfinite() would wait for the device at each
            largest = total_norm(list(trainer.lightning_module.parameters()), norm_type=float("inf"))
            if not largest.isfinite():
                raise Diverged(
                    f"the model has diverged: after update {update} its weights are not finite; lower optimizer.lr, or "
                    "warm up longer, and start a new run; earlier checkpoints are unchanged"
                )
            # before the state is saved: the resumed run must not write this update again
            self.saved_update = None if validation_is_next else update
            self.validation_is_next = validation_is_next
            # decoding needs the weights for evaluation
            with explaining_failed_writes(self.folder.parent), in_eval_mode(trainer.optimizers):
                # Lightning's weights_only=True leaves out the optimizer (it is not torch.load's option of this name)
                trainer.save_checkpoint(path, weights_only=False)
                if trainer.is_global_zero:
                    checkpoint_io(trainer).then(partial(self._link, path, update, is_best=update == self.best_update))
        return path

    def _link(self, path: Path, update: int, is_best: bool) -> None:
        if is_best:
            files.duplicate(path, self.folder / "best.ckpt")
        files.point_link(self.folder / "last.ckpt", path)  # before pruning: it may lead to what is removed
        files.prune_checkpoints(self.folder, update, self.keep_last)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Count the current micro-batch as complete, and no validation as open, unless one of this update is.

        Lightning (2.6) calls callbacks before it counts the micro-batch as completed. From such a checkpoint it resumes
        at the wrong place if the micro-batch was the last of its epoch, or if a validation had been started twice.
        """
        loop = checkpoint["loops"]["fit_loop"]
        progress, validation = loop["epoch_loop.batch_progress"], loop["epoch_loop.val_loop.batch_progress"]
        number_resumed_update(checkpoint)
        for part in (progress["current"], progress["total"]):
            part["completed"] = part["processed"]
        if self.validation_is_next:  # Lightning repeats one of which a batch is started and none completed
            validation["current"]["completed"] = 0
        for part in (validation["current"], validation["total"]):
            done, begun = part["completed"], part["completed"] + int(self.validation_is_next)
            part.update(ready=begun, started=begun, processed=done)

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Count micro-batches as if all updates so far had had as many of them as those that follow.

        Lightning (2.6) validates after multiples of a number of micro-batches: they would not fall on ends of updates.
        """
        total = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]
        total.update(dict.fromkeys(total, checkpoint["global_step"] * trainer.accumulate_grad_batches))

    def state_dict(self) -> dict[str, Any]:
        """Return the last update saved, and the best."""
        return {"saved_update": self.saved_update, "best_update": self.best_update, "best_wer": self.best_wer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the last update saved, and the best."""
        self.saved_update, self.best_update = state_dict["saved_update"], state_dict["best_update"]
        self.best_wer = state_dict["best_wer"]


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
                callback.wait(trainer)

    def _leave(self, trainer: pl.Trainer) -> None:
        if not self.leaving:
            return
        if self.written is None:
            self._save(trainer)  # gives the path of what was saved at the end of a validation
        if self.received == signal.SIGINT and trainer.world_size == 1:
            raise KeyboardInterrupt(self._where_interrupted(trainer))
        raise Preempted  # of several processes, this one says what was saved

    def _where_interrupted(self, trainer: pl.Trainer) -> str:
        how = "not saved" if self.written is None else f"saved; resume with: {resume_command(self.written.parents[1])}"
        return f" at update {trainer.global_step}, {how}"

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Print where the run ended; the progress bar is closed by now."""
        if not isinstance(exception, Preempted) or not trainer.is_global_zero:
            return
        if self.received == signal.SIGINT:
            print(f"asr-train: interrupted{self._where_interrupted(trainer)}", file=sys.stderr)
            return
        why = f"received {self.received.name}" if self.received else "another process received a signal"
        where = "without a checkpoint"
        if self.written is not None:
            where = f"saved as {self.written}; to resume: {resume_command(self.written.parents[1])}"
        print(f"{why}: stopped after update {trainer.global_step} with exit code {TRY_AGAIN}, {where}", file=sys.stderr)


class WeightAveraging(pl.Callback):
    """Averages the parameters of the recognizer; training and validation use the raw weights.

    An update that was skipped counts too, with the unchanged weights. Raw weights are those for evaluation, also with
    an optimizer that trains elsewhere (`asr.training.optimizer_protocols`). Every process averages what it holds of the
    weights: a copy, which is equal in all processes, or a part.

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
            parts = _with_tensors(self.restored, lambda name, x: local_part(part_of(x, self.weights[name])))
            self.averages, self.restored = RunningAverages.from_state(parts, device), None
            return
        self.averages = RunningAverages({name: local_part(x) for name, x in self.weights.items()}, trainer.global_step)
        if trainer.global_step and trainer.is_global_zero:
            console.print(f"the checkpoint has no averages of weights: they start after update {trainer.global_step}")

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Add the weights after an update."""
        assert self.averages is not None
        update = trainer.global_step
        # Lightning calls this after each micro-batch, global_step counts updates
        if ends_update(trainer) and update % self.every == 0:
            with in_eval_mode(trainer.optimizers):
                weights = {name: local_part(x) for name, x in self.weights.items()}
                self.averages.add(update, weights, self.ema_decay, self.every)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Add the averages."""
        if self.averages is not None:
            state = self.averages.state_dict()
            checkpoint[AVERAGES] = _with_tensors(state, lambda name, x: joined(x, self.weights[name]))

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Keep them until the weights are on their device."""
        self.restored = checkpoint.get(AVERAGES)


def _with_tensors(state: Mapping[str, Any], change: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
    """Return the state of averages with other tensors: a function of a weight's name and the former one."""

    def changed(weights: Mapping[str, Tensor] | None) -> dict[str, Tensor] | None:
        return None if weights is None else {name: change(name, x) for name, x in weights.items()}

    marks = [{**mark, "mean": changed(mark["mean"])} for mark in state["marks"]]
    return {**state, "sum": changed(state["sum"]), "marks": marks, "ema": changed(state["ema"])}
