"""Batches in the order of an epoch, read by worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch.utils.data import DataLoader, Sampler

from asr.data.batch import Batch
from asr.data.dataset import SpeechDataset
from asr.data.sampling import MicroBatches
from asr.data.worker_signals import obey_parent_alone


@dataclass(frozen=True)
class Workers:
    """How batches are read.

    Attributes:
        num_workers: processes that read; 0 reads in the training process.
        prefetch: micro-batches that each worker reads ahead.
    """

    num_workers: int = 1
    prefetch: int = 4

    def __post_init__(self) -> None:
        if self.num_workers < 0:
            raise ValueError(f"num_workers must be at least 0, given {self.num_workers}")
        if self.prefetch < 1:
            raise ValueError(f"prefetch must be at least 1, given {self.prefetch}")


class _Planned(Sampler):
    """Lends a lazily planned order to a DataLoader."""

    def __init__(self, plan: Iterable) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator:
        return iter(self.plan)


def read(dataset: SpeechDataset, plan: Iterable, workers: Workers) -> Iterator[Batch]:
    """Yield the batches of a plan: (seed, cuts) pairs in order."""
    loader: DataLoader = DataLoader(
        dataset,
        sampler=_Planned(plan),
        batch_size=None,
        num_workers=workers.num_workers,
        prefetch_factor=workers.prefetch if workers.num_workers else None,
        worker_init_fn=partial(obey_parent_alone, os.getpid()),
        multiprocessing_context="fork" if workers.num_workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    return iter(loader)


class EvaluationLoader:
    """Reads every cut once, in an order that is always the same.

    Args:
        dataset: cuts → batch.
        micro_batches: made with ``shuffle=False``.
        workers: how to read.
        rank: of this process.
        world_size: number of processes; each reads another part.
    """

    def __init__(
        self,
        dataset: SpeechDataset,
        micro_batches: MicroBatches,
        workers: Workers,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.dataset, self.micro_batches, self.workers = dataset, micro_batches, workers
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[Batch]:
        plan = islice(self.micro_batches.epoch(0), self.rank, None, self.world_size)
        return read(self.dataset, plan, self.workers)
