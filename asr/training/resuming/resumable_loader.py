"""The training data as Lightning's ``fit`` iterates them, from the micro-batch where the run stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl

from asr.console import PlainConsole
from asr.data.loading.batch import Batch
from asr.data.loading.dataset import SpeechDataset
from asr.data.loading.loader import Workers, load_batches
from asr.data.loading.sampling import DurationBucketSampler
from asr.subprocesses import is_first_process

console = PlainConsole(quiet=not is_first_process())


class ResumableLoader:
    """Reads the micro-batches of the trainer's current epoch, from the first one that is not processed yet.

    A sampler's own state runs ahead of training by what the workers have read. Here the position is the trainer's
    count of processed batches, and the order a function of (seed, epoch): nothing else has to be saved.

    Args:
        dataset: cuts → batch.
        micro_batches: the order of an epoch.
        workers: how to read.
    """

    def __init__(self, dataset: SpeechDataset, micro_batches: DurationBucketSampler, workers: Workers) -> None:
        self.dataset, self.micro_batches, self.workers = dataset, micro_batches, workers
        self.trainer: pl.Trainer | None = None
        self.start: int | None = 0

    def __iter__(self) -> Iterator[Batch]:
        trainer = self.trainer
        assert trainer is not None, "fit() sets the trainer"
        start, self.start = self.start, 0  # later epochs start at their beginning
        if start is None:
            return iter(())  # ends the epoch
        plan = self.micro_batches.updates(
            # not trainer.current_epoch: it counts completed epochs, and is corrected only later when a run is resumed
            epoch=_num_processed(trainer.fit_loop.epoch_progress),
            start=start,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            accumulate=trainer.accumulate_grad_batches,
        )
        return load_batches(self.dataset, plan, self.workers)

    def shares_heard(self) -> dict[str, float]:
        """Return the share of each corpus of a mixture in the seconds heard in this epoch; empty for one corpus."""
        assert self.trainer is not None
        progress = self.trainer.fit_loop
        num_heard = _num_processed(progress.epoch_loop.batch_progress) * self.trainer.world_size
        return self.micro_batches.shares(_num_processed(progress.epoch_progress), num_heard)

    def _shares(self) -> dict[str, int]:
        """Return what determines the micro-batches of a process."""
        assert self.trainer is not None
        return {"world_size": self.trainer.world_size, "accumulate": self.trainer.accumulate_grad_batches}

    def state_dict(self) -> dict[str, Any]:
        """Return the number of micro-batches that each process has done in this epoch."""
        assert self.trainer is not None
        return {"processed": _num_processed(self.trainer.fit_loop.epoch_loop.batch_progress), **self._shares()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the processed micro-batches; Lightning calls this only for an unfinished epoch.

        If the number of processes has changed, the rest of the epoch is left out: counts per process, which decide when
        to validate, would have another meaning.
        """
        saved = {key: state[key] for key in self._shares()}
        self.start = int(state["processed"]) if saved == self._shares() else None
        if self.start is None:
            console.print(
                f"{saved['world_size']} processes with {saved['accumulate']} micro-batches per update are now "
                f"{self._shares()['world_size']} with {self._shares()['accumulate']}: resuming from the next epoch",
            )


def _num_processed(progress: Any) -> int:
    """Return how many epochs, or micro-batches of this epoch, are done; Lightning declares a base type without it."""
    return int(progress.current.processed)
