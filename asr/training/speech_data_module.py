"""Prepared data as Lightning reads them: the position in an epoch is the trainer's own count."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import lightning.pytorch as pl

from asr.data.loading.loader import (
    Augmentation,
    Batch,
    EvaluationLoader,
    LoaderFactory,
    MicroBatch,
    SpeechDataset,
    Workers,
    load_batches,
)
from asr.data.loading.sampling import DurationBucketSampler
from asr.data.preparation.prepared import PreparedData
from asr.processes import is_first_process
from werdict.console import console
from werdict.errors import ConfigError


class SpeechDataModule(pl.LightningDataModule):
    """Training and development sets of prepared data, for `TrainingModule` and any Lightning trainer.

    ``pl.Trainer(max_steps=1000).fit(module, SpeechDataModule(prepared, loaders, seed=1))`` trains as ``asr-train``
    does: batches, masks, losses and updates are the same. What `asr.run.train` and the callbacks of ``asr-train``
    add is missing then: atomic checkpoints, an exact continuation of an interrupted run (Lightning's own checkpoints
    are written while it counts the current micro-batch), a checkpoint at SIGTERM, and messages about memory, lost
    workers and lost processes. With several processes give ``use_distributed_sampler=False``.

    Args:
        prepared: the data.
        loaders: cuts → batches.
        seed: decides the order of the training cuts.
        augmentation: changes the audio of training cuts; None: nothing does.
        copies: of an utterance in a micro-batch, see `num_copies`.
    """

    def __init__(
        self,
        prepared: PreparedData,
        loaders: LoaderFactory,
        seed: int = 1,
        augmentation: Augmentation | None = None,
        copies: int | Sequence[int] = 1,
    ) -> None:
        super().__init__()
        self.prepared, self.loaders, self.seed, self.augmentation = prepared, loaders, seed, augmentation
        self.copies = copies

    def train_dataloader(self) -> ResumableLoader:
        """Return the micro-batches of the trainer's current epoch."""
        dataset, sampler = self.loaders.training_data(self.prepared.cuts("train"), self.seed, self.augmentation)
        assert self.trainer is not None
        return ResumableLoader(dataset, sampler, self.loaders.workers, self.trainer, self.copies)

    def val_dataloader(self) -> Sequence[EvaluationLoader]:
        """Return a loader of each development set, which reads the part of this process."""
        loaders = [self.loaders.evaluation_loader(self.prepared.cuts(name)) for name in self.prepared.names("dev")]
        assert self.trainer is not None
        for loader in loaders:  # Lightning adds a distributed sampler only to loaders of torch
            loader.rank, loader.world_size = self.trainer.global_rank, self.trainer.world_size
        return loaders


class ResumableLoader:
    """Reads the micro-batches of the trainer's current epoch, from the first one that is not processed yet.

    A sampler's own state runs ahead of training by what the workers have read. Here the position is the trainer's
    count of processed batches, and the order a function of (seed, epoch): nothing else has to be saved.

    Args:
        dataset: cuts → batch.
        micro_batches: the order of an epoch.
        workers: number of worker processes and prefetched batches.
        trainer: counts epochs and micro-batches.
        copies: of an utterance in a micro-batch, see `num_copies`.

    Attributes:
        start: micro-batches of this process that are done in the epoch to come; None: all.
        wait_s: seconds that training has waited for batches.

    Raises:
        ConfigError: the number of copies changes over a run of unknown length.
    """

    def __init__(
        self,
        dataset: SpeechDataset,
        micro_batches: DurationBucketSampler,
        workers: Workers,
        trainer: pl.Trainer,
        copies: int | Sequence[int] = 1,
    ) -> None:
        self.dataset, self.micro_batches, self.workers, self.trainer = dataset, micro_batches, workers, trainer
        self.start: int | None = 0
        self.wait_s = 0.0
        self.copies = copies
        if not isinstance(copies, int) and trainer.max_steps < 1:
            raise ConfigError(f"augment.copies={[*copies]} changes over the updates of a run; give trainer.max_steps")

    def __iter__(self) -> Iterator[Batch]:
        trainer = self.trainer
        start, self.start = self.start, 0  # later epochs start at their beginning
        if start is None:
            return iter(())  # ends the epoch
        plan: Iterator = self.micro_batches.updates(
            # not trainer.current_epoch: it counts completed epochs, and is corrected only later when a run is resumed
            epoch=_num_processed(trainer.fit_loop.epoch_progress),
            start=start,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            accumulate=trainer.accumulate_grad_batches,
        )
        if self.copies != 1:
            plan = self._copied(plan, trainer.global_step)
        return self._timed(load_batches(self.dataset, plan, self.workers))

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        begun = time.perf_counter()
        for batch in batches:
            self.wait_s += time.perf_counter() - begun
            yield batch
            begun = time.perf_counter()

    def _copied(self, plan: Iterator[tuple[int, Sequence[Any]]], num_updates: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of a plan after ``num_updates``: n copies of 1/n of the cuts, never of more."""
        accumulate, length = self.trainer.accumulate_grad_batches, max(1, self.trainer.max_steps)
        for i, (seed, cuts) in enumerate(plan):
            wanted = num_copies(self.copies, (num_updates + i // accumulate) / length)
            yield MicroBatch(seed, cuts[: max(1, len(cuts) // wanted)], min(wanted, len(cuts)))

    def corpus_shares(self) -> dict[str, float]:
        """Return the share of each corpus of a mixture in the seconds of this epoch so far; empty for one corpus."""
        progress = self.trainer.fit_loop
        num_processed = _num_processed(progress.epoch_loop.batch_progress) * self.trainer.world_size
        return self.micro_batches.shares(_num_processed(progress.epoch_progress), num_processed)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of micro-batches that each process has done in this epoch."""
        return {
            "processed": _num_processed(self.trainer.fit_loop.epoch_loop.batch_progress),
            "world_size": self.trainer.world_size,
            "accumulate": self.trainer.accumulate_grad_batches,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the processed micro-batches; Lightning calls this only for an unfinished epoch.

        The plan of an epoch knows updates and no processes: other numbers of processes with as many micro-batches per
        update go on in it. With other updates, the rest of the epoch is left out.
        """
        trainer = self.trainer
        former = state["world_size"], state["accumulate"]
        current = trainer.world_size, trainer.accumulate_grad_batches
        self.start, rest = divmod(state["processed"] * former[0], current[0])
        if prod(former) == prod(current) and not rest:
            progress = trainer.fit_loop.epoch_loop.batch_progress.current
            for name, count in vars(progress).items():  # of each process; Lightning counts some of them earlier
                setattr(progress, name, self.start + count - state["processed"])
            return
        self.start = None
        if is_first_process():
            console.print(
                "{} processes with {} micro-batches per update are now {} with {}: resuming from the next epoch".format(
                    *former, *current
                )
            )


def num_copies(copies: int | Sequence[int], progress: float) -> int:
    """Return how many copies of an utterance a micro-batch has.

    Args:
        copies: always as many, or the first and the last number, between which each has an equal share of the run.
        progress: share of the run that is done.
    """
    first, last = (copies, copies) if isinstance(copies, int) else copies
    numbers = range(first, last + 1) or range(first, last - 1, -1)
    return numbers[min(int(progress * len(numbers)), len(numbers) - 1)]


def _num_processed(progress: Any) -> int:
    """Return how many epochs, or micro-batches of this epoch, are done; Lightning declares a base type without it."""
    return int(progress.current.processed)
