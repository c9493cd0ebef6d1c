"""Measures how many seconds of audio fit into memory, by real updates on the largest micro-batches of an epoch."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader

from asr.data.loading.batch import Batch
from asr.data.loading.dataset import SpeechDataset
from asr.data.loading.sampling import DurationBucketSampler
from asr.error_text import is_out_of_memory
from asr.training.memory import DeviceMemory, memory_of
from asr.training.module import TrainingModule

USABLE = 0.9  # share of the memory: allocators leave gaps, and other batches may need more than those measured

TrainerFactory = Callable[[list[pl.Callback], int], pl.Trainer]
"""Callbacks and number of updates → a trainer on one device that writes nothing."""


@dataclass(frozen=True)
class Measured:
    """An update on one micro-batch.

    Attributes:
        num_cuts: in the micro-batch.
        longest_s: duration of the longest cut.
        counted_s: what ``data.batch.max_duration_s`` limits: the cost of the longest cut times the number of cuts.
        peak: largest number of bytes in use; None if the update did not fit.
        seconds: duration of the update.
    """

    num_cuts: int
    longest_s: float
    counted_s: float
    peak: int | None
    seconds: float = math.nan


@dataclass(frozen=True)
class Bucket:
    """Measurements on the largest micro-batch of a duration bucket, and on parts of it.

    Attributes:
        base: bytes in use between updates: weights, gradients, optimizer.
        sizes: from small to large; the last one is the whole micro-batch, or the first part that did not fit.
    """

    base: int
    sizes: tuple[Measured, ...]

    def bytes_per_second(self) -> float:
        """Return the slope of peak memory over counted seconds: least squares on a line through the base.

        A peak is never below base plus activations, so this is never below the bytes of activations per second.
        """
        fitting = [(size.counted_s, size.peak - self.base) for size in self.sizes if size.peak is not None]
        return sum(x * y for x, y in fitting) / sum(x * x for x, _ in fitting) if fitting else 0.0

    def limit_s(self, usable: float) -> float:
        """Return the counted seconds that fit into ``usable`` bytes; infinite if memory does not grow with them."""
        slope, last = self.bytes_per_second(), self.sizes[-1]
        limit = math.inf if slope <= 0 else (usable - self.base) / slope
        if last.peak is None and limit > USABLE * last.counted_s:
            # the line allows a size that did not fit: return the largest size that did
            return self.sizes[-2].counted_s if len(self.sizes) > 1 else last.counted_s / 2
        return limit


@dataclass(frozen=True)
class BatchSizeSearch:
    """All measurements on a device.

    Attributes:
        device: its name.
        available: bytes of its memory that this process may use.
        reserved: bytes that a run will need in addition to what was measured.
        buckets: from short cuts to long ones.
    """

    device: str
    available: int
    reserved: int
    buckets: tuple[Bucket, ...]

    @property
    def proposed_s(self) -> float:
        """Largest ``data.batch.max_duration_s`` that fits in all buckets; 0: none; infinite: memory does not grow."""
        usable = USABLE * self.available - self.reserved
        limit = max(0.0, min(bucket.limit_s(usable) for bucket in self.buckets))
        return limit if limit == math.inf else math.floor(limit) if limit >= 10 else math.floor(10 * limit) / 10


class _Probe(pl.Callback):
    """Measures every update."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self.bases: list[int] = []
        self.peaks: list[int] = []
        self.seconds: list[float] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.memory.start()
        self.bases.append(self.memory.now())
        self.begin = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.peaks.append(self.memory.peak())
        self.seconds.append(time.perf_counter() - self.begin)


def search_batch_size(
    module: TrainingModule,
    dataset: SpeechDataset,
    sampler: DurationBucketSampler,
    text_lengths: np.ndarray,
    make_trainer: TrainerFactory,
    reserved: int = 0,
    num_processes: int = 1,
) -> BatchSizeSearch:
    """Measure updates on the largest micro-batch of every bucket; weights and random state stay unchanged.

    Args:
        module: what would be trained.
        dataset: cuts → batch, with the longest cuts that augmentation can make.
        sampler: of the training data.
        text_lengths: of its cuts.
        make_trainer: see `TrainerFactory`.
        reserved: bytes that a run will need in addition to what is measured here.
        num_processes: of a run on this machine.
    """
    memory = memory_of(make_trainer([], 1).strategy.root_device, num_processes)
    with torch.random.fork_rng():  # training steps seed torch's generator
        buckets = [
            _measure(module, dataset, sampler, numbers, make_trainer, memory)
            for numbers in sampler.largest_per_bucket(text_lengths)
        ]
    return BatchSizeSearch(memory.name, memory.available, reserved, tuple(buckets))


def _measure(
    module: TrainingModule,
    dataset: SpeechDataset,
    sampler: DurationBucketSampler,
    numbers: np.ndarray,
    make_trainer: TrainerFactory,
    memory: DeviceMemory,
) -> Bucket:
    """Measure a quarter, a half and the whole of a micro-batch whose longest cut and text come first."""
    sizes = sorted({math.ceil(len(numbers) / part) for part in (4, 2, 1)})
    # the first update creates the optimizer's state; the second one of a size runs warm
    nums = [sizes[0], *sizes, sizes[-1]]
    batches = [dataset[(0, sampler.cut_set(numbers[:num]))] for num in nums]
    for batch in batches:
        if batch.skipped:
            name, reason = batch.skipped[0]
            raise ValueError(f"find_batch_size: {name} cannot be read: {reason}; put it back")
    probe = _run(copy.deepcopy(module), batches, make_trainer, memory)  # updates would change the weights
    found = [_at(sampler, numbers, num, probe, [i for i, n in enumerate(nums) if n == num and i > 0]) for num in sizes]
    num_fitting = sum(size.peak is not None for size in found)
    return Bucket(base=max(probe.bases[1:2] or probe.bases), sizes=tuple(found[: num_fitting + 1]))


def _run(module: TrainingModule, batches: list[Batch], make_trainer: TrainerFactory, memory: DeviceMemory) -> _Probe:
    probe = _Probe(memory)
    trainer = make_trainer([probe], len(batches))
    try:
        with warnings.catch_warnings():  # Lightning misses a validation, which is not measured
            warnings.filterwarnings("ignore", message=".*no `val_dataloader`.*")
            trainer.fit(module, train_dataloaders=DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    return probe


def _at(sampler: DurationBucketSampler, numbers: np.ndarray, num: int, probe: _Probe, updates: list[int]) -> Measured:
    """Return what was measured at those updates that were on the first ``num`` cuts."""
    durations = sampler.durations[numbers[:num]]
    longest, counted = float(durations.max()), float(sampler.size.costs(durations).max()) * num
    if updates[-1] >= len(probe.peaks):  # memory ran out before its end
        return Measured(num, longest, counted, None)
    return Measured(num, longest, counted, max(probe.peaks[i] for i in updates), probe.seconds[updates[-1]])
