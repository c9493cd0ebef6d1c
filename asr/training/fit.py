"""Calls Lightning's ``fit``, and turns its failures into errors that name the checkpoint or the utterances."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

from asr import devices
from asr.data.loading.batch import Batch
from asr.data.loading.loader import EvaluationLoader
from asr.error_text import first_line, is_out_of_memory
from asr.errors import RunFailed, explaining_lost_peers, explaining_lost_workers, explaining_out_of_memory
from asr.training.module import TrainingModule
from asr.training.resuming.resumable_loader import ResumableLoader
from asr.training.resuming.resume_checks import check_optimizer, check_schedule, lay_out_anew
from asr.training.stopping import refuse_end_without_update


class Misconfigured(ValueError):
    """Parts of a run that do not work together."""


def fit(
    trainer: pl.Trainer,
    module: TrainingModule,
    loader: ResumableLoader,
    dev: Sequence[EvaluationLoader],
    checkpoint: Path | None = None,
) -> None:
    """Train until ``trainer.max_steps`` updates, from the start or from a checkpoint.

    Raises:
        ValueError: the checkpoint does not fit.
        RunFailed: training cannot continue.
    """
    loader.trainer = trainer
    for part in dev:  # Lightning adds a distributed sampler only to loaders of torch
        part.rank, part.world_size = trainer.global_rank, trainer.world_size
    checks = _RestoreChecks()
    # first, so that what is restored is checked before other callbacks use it
    trainer.callbacks.insert(0, checks)  # type: ignore[attr-defined]
    out_of_memory = explaining_out_of_memory(lambda: when_training(module.current_batch))
    with (
        _raising_interrupts(checks),
        out_of_memory,
        _naming_checkpoint(checks, checkpoint),
        explaining_lost_workers(),
        explaining_lost_peers(),
    ):
        try:
            # weights_only: a stranger's checkpoint must not run code when Lightning reads it once more
            trainer.fit(
                module, train_dataloaders=loader, val_dataloaders=list(dev), ckpt_path=checkpoint, weights_only=True
            )
        except SystemExit as left:
            # after a Ctrl-C Lightning (2.6) exits with code 1 and tells only a log that is silenced here
            if trainer.interrupted and left.code == 1:
                raise KeyboardInterrupt from None
            raise
        except MisconfigurationException as error:
            # Lightning's callbacks raise it when the trainer lacks something, such as a logger
            raise Misconfigured(first_line(error)) from error
    refuse_end_without_update(trainer, checks.first_update)


class _RestoreChecks(pl.Callback):
    """Checks what is restored from a checkpoint, and records whether an update has succeeded since."""

    def __init__(self) -> None:
        self.started = self.updated = self.interrupted = False
        self.first_update = 0
        self.schedules: Sequence[Any] = ()

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Keep the states of schedules: torch's load_state_dict overwrites every attribute without a check."""
        self.schedules, self.first_update = checkpoint["lr_schedulers"], checkpoint["global_step"]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare them with the schedules as built, before they are restored."""
        for saved, built in zip(self.schedules, trainer.lr_scheduler_configs, strict=False):
            check_schedule(saved, built.scheduler.state_dict())

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the restored optimizer, and lay out its moments as in a run that was not interrupted."""
        for optimizer in trainer.optimizers if self.first_update else ():
            check_optimizer(optimizer)
            lay_out_anew(optimizer)
        self.started = True

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Leave after a Ctrl-C that was lost: Python ignores what is raised while an object is deleted."""
        if self.interrupted:
            raise KeyboardInterrupt

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Note that the restored states were good for an update."""
        self.updated = True


@contextlib.contextmanager
def _raising_interrupts(checks: _RestoreChecks) -> Iterator[None]:
    """Raise KeyboardInterrupt after a Ctrl-C, also if it was lost, or has made Lightning fail while it cleaned up."""

    def interrupt(*_: Any) -> None:
        checks.interrupted = True
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    # background jobs of shells ignore it, and only the main thread may set it
    is_default = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if is_default:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if checks.interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if is_default:
            signal.signal(signal.SIGINT, before)
    if checks.interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _naming_checkpoint(checks: _RestoreChecks, checkpoint: Path | None) -> Iterator[None]:
    """Name the checkpoint whose states cannot be restored, or not be used for a single update.

    Only optimizer, schedule and callbacks themselves can tell whether their states are valid.
    """
    if checkpoint is None:
        yield
        return
    try:
        yield
    except (RunFailed, OSError, Misconfigured):
        raise
    except Exception as error:
        # once training has started, a ValueError may be about the data, and names them
        if checks.updated or is_out_of_memory(error) or (checks.started and isinstance(error, ValueError)):
            raise
        raise ValueError(
            f"resume: {checkpoint} does not fit the run that it is in: {type(error).__name__}: {first_line(error)}; "
            "move it away to resume from the one before"
        ) from error


def when_training(batch: Batch | None) -> str:
    """Return what did not fit into memory in a training step (ids, seconds, seconds with padding), and what to do."""
    if batch is None:
        return "before the first micro-batch: lower data.workers.num_workers, or choose a smaller encoder."
    frames = devices.to_host(batch.num_frames)
    # a batch knows only the sum of its seconds
    seconds = [batch.audio_s * num / max(1, sum(frames)) for num in frames]
    each = ", ".join(f"{cut} ({s:.1f} s)" for cut, s in zip(batch.ids, seconds, strict=True))
    padded = len(seconds) * max(seconds, default=0.0)
    advice = (
        "Lower data.batch.max_duration_s; if only batches of long utterances fail, set "
        "data.batch.quadratic_duration_s=20 so that they count more. asr-train find_batch_size=true measures what "
        "fits; trainer.accumulate_grad_batches keeps the size of an update."
    )
    if len(batch) == 1:
        advice = "One utterance alone is too long: lower data.limits.max_duration_s, or choose a smaller encoder."
    return (
        f"at a micro-batch of {len(batch)} utterances, {batch.audio_s:.1f} s of audio, {padded:.1f} s with padding: "
        f"{each}. {advice}"
    )
