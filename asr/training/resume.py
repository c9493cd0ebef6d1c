"""Training data as Lightning sees it: an iterable that knows where training stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl

from asr.data.batch import Batch
from asr.data.dataset import SpeechDataset
from asr.data.loader import Workers, read
from asr.data.sampling import MicroBatches


class ResumableLoader:
    """Reads the micro-batches of the epoch that the trainer is in, from the first one it has not processed.

    A sampler's own state runs ahead of training by what the workers have read. Here the position is the trainer's
    count of processed batches, and the order a function of (seed, epoch), so nothing else has to be saved.

    Args:
        dataset: cuts → batch.
        micro_batches: the order of an epoch.
        workers: how to read.
    """

    def __init__(self, dataset: SpeechDataset, micro_batches: MicroBatches, workers: Workers) -> None:
        self.dataset, self.micro_batches, self.workers = dataset, micro_batches, workers
        self.trainer: pl.Trainer | None = None
        self.start = 0

    def __iter__(self) -> Iterator[Batch]:
        trainer = self.trainer
        assert trainer is not None, "fit() hands over the trainer"
        start, self.start = self.start, 0
        plan = self.micro_batches.updates(
            # right at a resume too, when current_epoch is not yet
            epoch=_processed(trainer.fit_loop.epoch_progress),
            start=start,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            accumulate=trainer.accumulate_grad_batches,
        )
        return read(self.dataset, plan, self.workers)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of micro-batches processed in this epoch."""
        assert self.trainer is not None
        return {"processed": _processed(self.trainer.fit_loop.epoch_loop.batch_progress)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue behind the processed micro-batches; Lightning calls this for an unfinished epoch only."""
        self.start = int(state["processed"])


def _processed(progress: Any) -> int:
    """Return how many epochs, or micro-batches of this epoch, are done; behind both names stands the same tracker."""
    return int(progress.current.processed)
