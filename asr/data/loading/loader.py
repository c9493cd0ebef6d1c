"""Loads the batches of an epoch in order, by worker processes."""

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
from torch.utils.data import DataLoader

from asr.data.loading.batch import Batch
from asr.data.loading.dataset import SpeechDataset
from asr.data.loading.sampling import DurationBucketSampler
from asr.data.loading.worker_signals import WorkerContext, ignore_signals_except_parents
from asr.errors import UnusableFile, WorkerLost

MAX_SOCKET_PATH = 107  # bytes, on Linux; workers send tensors through a socket
SOCKET_NAME = "/pymp-12345678/listener-12345678"  # its name in TMPDIR, chosen by multiprocessing


@dataclass(frozen=True)
class Workers:
    """How batches are loaded.

    Attributes:
        num_workers: worker processes; 0 loads in the training process.
        prefetch: micro-batches that each worker loads ahead.
    """

    num_workers: int = 1
    prefetch: int = 4

    def __post_init__(self) -> None:
        for name, least in (("num_workers", 0), ("prefetch", 1)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, given {getattr(self, name)!r}")
        if self.num_workers:
            _check_temporary_folder(tempfile.gettempdir())


def load_batches(dataset: SpeechDataset, plan: Iterable, workers: Workers) -> Iterator[Batch]:
    """Yield the batches of a plan: (seed, cuts) pairs in order.

    Raises:
        WorkerLost: a worker cannot be started or reached.
        UnusableFile: a shard is missing or has changed, or a recording of noise cannot be used.
        RuntimeError: a worker has ended (raised by torch).
    """
    loader: DataLoader = DataLoader(
        dataset,
        sampler=plan,
        batch_size=None,
        num_workers=workers.num_workers,
        prefetch_factor=workers.prefetch if workers.num_workers else None,
        worker_init_fn=partial(ignore_signals_except_parents, os.getpid()),
        multiprocessing_context=WorkerContext() if workers.num_workers else None,
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
    # torch's half-initialized iterator raises again in __del__, which Python would print
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
    except UnusableFile as error:
        # torch puts the traceback of the worker in front
        raise type(error)(str(error).rpartition(f"{type(error).__name__}: ")[2].strip()) from None
    except (OSError, EOFError) as error:
        raise WorkerLost(f"a batch could not be received: {str(error) or type(error).__name__}") from error


class EvaluationLoader:
    """Loads every cut once, always in the same order.

    Args:
        dataset: cuts → batch.
        sampler: made with ``shuffle=False``.
        workers: how to load.
        rank: of this process.
        world_size: number of processes; each loads another part.
    """

    def __init__(
        self,
        dataset: SpeechDataset,
        sampler: DurationBucketSampler,
        workers: Workers,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        # not named sampler: Lightning 2.6 takes an object with that attribute for a DataLoader
        self.dataset, self.cut_sampler, self.workers = dataset, sampler, workers
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[Batch]:
        plan = islice(self.cut_sampler.epoch(0), self.rank, None, self.world_size)
        return load_batches(self.dataset, plan, self.workers)
