"""Calls Lightning's ``fit``; errors of the machine name the utterances, or say what to do."""

from __future__ import annotations

import contextlib
import datetime
import signal
import threading
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from asr import devices
from asr.data.loading.batch import Batch
from asr.errors import explaining_lost_peers, explaining_lost_workers, explaining_out_of_memory
from asr.training.checkpoints.loading import LoadedCheckpoint
from asr.training.module import TrainingModule


def fit(
    trainer: pl.Trainer,
    module: TrainingModule,
    data: pl.LightningDataModule,
    checkpoint: LoadedCheckpoint | None = None,
) -> None:
    """Train until ``trainer.max_steps`` updates, from the start or from a checkpoint.

    Raises:
        RunFailed: training cannot continue.
    """
    interrupts = _Interrupts()
    trainer.callbacks.append(interrupts)  # type: ignore[attr-defined]
    with (
        interrupts.raised(),
        explaining_out_of_memory(lambda: when_training(module.current_batch)),
        explaining_lost_workers(),
        explaining_lost_peers(),
    ):
        try:
            # weights_only: Lightning reads the checkpoint again, and must not run code in it
            trainer.fit(module, data, ckpt_path=None if checkpoint is None else checkpoint.path, weights_only=True)
        except SystemExit as left:
            # after a Ctrl-C Lightning (2.6) exits with code 1 and tells only a log that is silenced here
            if trainer.interrupted and left.code == 1:
                raise KeyboardInterrupt from None
            raise


class _Interrupts(pl.Callback):
    """Raises KeyboardInterrupt after a Ctrl-C, also if it was lost, or has made Lightning fail while it cleaned up."""

    def __init__(self) -> None:
        self.interrupted = False

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Leave after a Ctrl-C that was lost: Python ignores what is raised while an object is deleted."""
        if self.interrupted:
            raise KeyboardInterrupt

    def _interrupt(self, *_: Any) -> None:
        self.interrupted = True
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Note every Ctrl-C in a block, and raise it at the end at the latest."""
        before = signal.getsignal(signal.SIGINT)
        # background jobs of shells ignore it, and only the main thread may set it
        is_default = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
        if is_default:
            signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            if is_default:
                signal.signal(signal.SIGINT, before)
            if self.interrupted:
                raise KeyboardInterrupt


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


def why_early(trainer: pl.Trainer) -> str:
    """Return which callback has stopped a run, and when; empty if all updates are done."""
    if trainer.global_step >= trainer.max_steps:
        return ""
    reasons = "; ".join(_reasons(trainer)) or "a callback asked for it"
    return f"stopped at update {trainer.global_step} of {trainer.max_steps}: {reasons}"


def _reasons(trainer: pl.Trainer) -> Iterator[str]:
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Timer):
            left = callback.time_remaining()  # None without a duration
            if left is not None and left <= 0:
                duration = datetime.timedelta(seconds=callback.time_elapsed() + left)
                yield f"the duration {duration} of the callback Timer is over"
        elif isinstance(callback, EarlyStopping) and callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
            said = (callback.stopping_reason_message or "").removesuffix(" Signaling Trainer to stop.")
            yield f"by the callback EarlyStopping: {said.rstrip('.')}"
