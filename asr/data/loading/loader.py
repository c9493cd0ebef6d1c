"""Batches in the order of an epoch, read by worker processes."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch.utils.data import DataLoader, Sampler

from asr.data.loading.batch import Batch
from asr.data.loading.dataset import SpeechDataset
from asr.data.loading.sampling import DurationBucketSampler
from asr.data.loading.worker_signals import obey_parent_alone

# each is a process of its own; more than a few per core only wait for each other
MAX_WORKERS = max(64, 4 * (os.cpu_count() or 1))
MAX_BATCHES = 1024  # micro-batches in memory
MAX_SOCKET_PATH = 107  # bytes, of a socket that workers send tensors through
SOCKET_NAME = "/pymp-12345678/listener-12345678"  # which multiprocessing gives it below TMPDIR


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
        for name in ("num_workers", "prefetch"):
            if not isinstance(getattr(self, name), int) or isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be a whole number, given {getattr(self, name)!r}")
        for name, least, most in (("num_workers", 0, MAX_WORKERS), ("prefetch", 1, MAX_BATCHES)):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be at least {least} and at most {most}, given {getattr(self, name)}")
        if self.num_workers:
            _check_temporary_folder(tempfile.gettempdir())
        if self.num_workers * self.prefetch > MAX_BATCHES:
            raise ValueError(
                f"num_workers × prefetch must be at most {MAX_BATCHES}, the micro-batches in memory, given "
                f"{self.num_workers} × {self.prefetch}"
            )


class WorkerLost(RuntimeError):
    """A worker could not be started, or what it sends not be received."""


class _Planned(Sampler):
    """Lends a lazily planned order to a DataLoader."""

    def __init__(self, plan: Iterable) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator:
        return iter(self.plan)


def read(dataset: SpeechDataset, plan: Iterable, workers: Workers) -> Iterator[Batch]:
    """Yield the batches of a plan: (seed, cuts) pairs in order.

    Raises:
        WorkerLost: a worker cannot be started, or not be reached. That one has ended torch says with a RuntimeError.
    """
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
    return _received(_started(loader)) if workers.num_workers else iter(loader)


def _check_temporary_folder(folder: str) -> None:
    num_bytes, most = len(os.fsencode(folder)), MAX_SOCKET_PATH - len(SOCKET_NAME)
    if num_bytes > most:
        raise ValueError(
            f"TMPDIR={folder}: this path has {num_bytes} bytes, more than the {most} that processes that read data can "
            "use; let TMPDIR name a folder with a shorter path, as in TMPDIR=/tmp"
        )


def _started(loader: DataLoader) -> Iterator[Batch]:
    # torch's half-made iterator fails once more when it is freed, and Python would print that
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        return iter(loader)
    except OSError as error:
        traceback.clear_frames(error.__traceback__)
        raise WorkerLost(f"a worker could not be started: {error}") from error
    finally:
        sys.unraisablehook = hook


def _received(batches: Iterator[Batch]) -> Iterator[Batch]:
    try:
        yield from batches
    except (OSError, EOFError) as error:
        raise WorkerLost(f"a batch could not be received: {str(error) or type(error).__name__}") from error


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
        micro_batches: DurationBucketSampler,
        workers: Workers,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.dataset, self.micro_batches, self.workers = dataset, micro_batches, workers
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[Batch]:
        plan = islice(self.micro_batches.epoch(0), self.rank, None, self.world_size)
        return read(self.dataset, plan, self.workers)
