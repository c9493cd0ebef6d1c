"""Calls Lightning's ``fit``; errors of the machine name the utterances, or say what to do."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping, Timer

from asr.data.loading.loader import Batch, explaining_lost_workers
from asr.models import devices
from asr.training.callbacks.checkpoints import checkpoint_io
from asr.training.checkpoints import LoadedCheckpoint
from asr.training.cuda_graphs import CudaGraphs
from asr.training.module import TrainingModule
from asr.training.processes import explaining_lost_peers
from werdict.errors import explaining_out_of_memory


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
    if checkpoint is not None:
        assert checkpoint.state, "the checkpoint was read to decode with"
        checkpoint_io(trainer).content = {**checkpoint.state}
        checkpoint.state.clear()  # twice the memory, otherwise, for the whole training
    captures = any(isinstance(callback, CudaGraphs) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    with (
        explaining_out_of_memory(lambda: when_training(module.current_batch, captures)),
        explaining_lost_workers(),
        explaining_lost_peers(),
    ):
        try:
            trainer.fit(module, data, ckpt_path=None if checkpoint is None else checkpoint.path, weights_only=True)
        except SystemExit as left:
            # after a Ctrl-C Lightning (2.6) exits with code 1 and tells only a log that is silenced here
            if trainer.interrupted and left.code == 1:
                raise KeyboardInterrupt(*getattr(left.__context__, "args", ())) from None
            raise


def when_training(batch: Batch | None, captures: bool) -> str:
    """Return what did not fit into memory in a training step (ids, seconds, seconds with padding), and what to do.

    Args:
        batch: of the step.
        captures: whether CUDA graphs, which have memory of their own, may have been captured.
    """
    if batch is None:
        return "before the first micro-batch: lower data.workers.num_workers, or choose a smaller encoder."
    frames = devices.to_host(batch.num_frames)
    # a batch knows only the sum of its seconds
    seconds = [batch.audio_s * num / max(1, sum(frames)) for num in frames]
    each = ", ".join(f"{cut} ({s:.1f} s)" for cut, s in zip(batch.ids, seconds, strict=True))
    padded = len(seconds) * max(seconds, default=0.0)
    advice = (
        "lower data.batch.max_duration_s (on a GPU, asr-train find_batch_size=true measures what fits); if only "
        "batches of long utterances fail, set data.batch.quadratic_duration_s=20, or lower data.limits.max_duration_s"
    )
    if captures:
        advice = f"give trainer.cuda_graphs=false to train without CUDA graphs, which keep memory, or {advice}"
    return (
        f"at a micro-batch of {len(batch)} utterances, {batch.audio_s:.1f} s of audio, {padded:.1f} s with padding: "
        f"{each}; {advice}"
    )


def early_stop_reason(trainer: pl.Trainer) -> str:
    """Return which callback stopped the run, and at which update; empty if all updates are done."""
    if trainer.global_step >= trainer.max_steps:
        return ""
    reasons = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        # None without a duration
        if isinstance(callback, Timer) and (remaining := callback.time_remaining()) is not None and remaining <= 0:
            reasons.append("the duration of the callback Timer is over")
        elif isinstance(callback, EarlyStopping) and callback.stopping_reason_message:
            reasons.append(f"by the callback EarlyStopping: {callback.stopping_reason_message}")
    reason = "; ".join(reasons) or "a callback requested it"
    return f"stopped at update {trainer.global_step} of {trainer.max_steps}: {reason}"
