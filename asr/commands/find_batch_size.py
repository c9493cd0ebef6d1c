"""``asr-train find_batch_size=true``: how many seconds of audio fit into a GPU, by real updates instead of training."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from rich.table import Table
from torch.utils.data import DataLoader

from asr.data.loading.loader import Batch, SpeechDataset
from asr.data.loading.sampling import DurationBucketSampler
from asr.models.recognizer import is_pretrained
from asr.processes import is_first_process
from asr.run.build import Run
from asr.run.parts import num_threads
from asr.run.trainer import build_trainer
from asr.training.module import TrainingModule
from asr.training.processes import console
from werdict.errors import memory_error

USABLE = 0.9  # of the largest size that fits: allocators leave gaps, and other batches may need more
TOLERANCE = 0.05  # between the largest size that fits and the smallest that does not
# one device stands for all, every micro-batch is an update, and nothing is written
ALONE: dict[str, Any] = {
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
    "accumulate_grad_batches": 1,
    "enable_checkpointing": False,
    "limit_val_batches": 0,
}


def find_batch_size(run: Run) -> None:
    """Measure, print a table, and propose ``data.batch.max_duration_s``."""
    if not is_first_process():
        return
    options, loaders, module = run.options, run.loaders, run.module
    torch.set_num_threads(num_threads(options.torch_threads, loaders.workers.count))
    augmentation: Any = run.outline.data.augmentation
    # which makes the longest cuts
    slowest = augmentation.slowest() if hasattr(augmentation, "slowest") else augmentation
    dataset, sampler = loaders.training_data(run.prepared.cuts("train"), options.seed, slowest)

    encoder: Any = module.recognizer.encoder
    if is_pretrained(encoder):
        encoder.freeze_updates = 0  # later updates take more memory

    def make_trainer(num_updates: int) -> pl.Trainer:
        return build_trainer(options.trainer, [], [], **ALONE, max_steps=num_updates)

    # DDP keeps a second copy of the gradients in its buckets
    copies = 0
    if run.outline.trainer.world_size > 1:
        copies = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    console.print_line("trying updates on the largest micro-batches of several sizes")
    text_lengths = run.prepared.ctc_lengths("train").num_ctc_frames
    result = search_batch_size(module, dataset, sampler, text_lengths, make_trainer, copies)
    console.print(result.table())
    for line in result.conclusions(loaders.batch.max_duration_s):
        console.print_line(line)


@dataclass(frozen=True)
class BatchSizeSearch:
    """All trials on a GPU.

    Attributes:
        trials: values of ``data.batch.max_duration_s`` → most bytes that tensors held; None: they did not fit.
        largest_s: largest value that fits; 0: none.
        longest_s: seconds that the longest utterance counts; smaller micro-batches take no less memory.
        all_s: seconds from which each duration bucket is a single micro-batch.
    """

    trials: Mapping[float, int | None]
    largest_s: float
    longest_s: float
    all_s: float

    @property
    def proposed_s(self) -> float:
        """The part of ``largest_s`` to be used, rounded down."""
        limit_s = USABLE * self.largest_s
        return math.floor(limit_s) if limit_s >= 10 else math.floor(10 * limit_s) / 10

    def table(self) -> Table:
        """Return a row for each trial, from small to large."""
        table = Table(show_edge=False, pad_edge=False)
        for column in ("seconds of audio", "fits", "peak MiB"):
            table.add_column(column, justify="right")
        for max_duration_s, peak in sorted(self.trials.items()):
            result = ("no", "") if peak is None else ("yes", f"{peak / 2**20:.0f}")
            table.add_row(f"{max_duration_s:.1f}", *result)
        return table

    def conclusions(self, now_s: float) -> list[str]:
        """Return what follows, as sentences; ``now_s`` is the present ``data.batch.max_duration_s``."""
        longest = f"the longest utterances count {self.longest_s:.1f} s each"
        if not self.largest_s:
            return [f"{longest}, and not even one fits: choose a smaller encoder, or lower data.limits.max_duration_s"]
        of_limit = f"{100 * USABLE:.0f} % of the largest that fits"
        lines = [f"proposed: data.batch.max_duration_s={self.proposed_s:g} (now {now_s:g}), {of_limit}"]
        if self.proposed_s < self.longest_s:
            lines.append(f"{longest}, and one alone nearly fills the memory: lower data.limits.max_duration_s")
        if self.largest_s >= self.all_s:
            lines.append("all data fit: each duration bucket is a single micro-batch")
        if self.proposed_s > now_s:
            lines.append("larger micro-batches make updates larger and fewer: the learning rate may need to change")
        return lines


def search_batch_size(
    module: TrainingModule,
    dataset: SpeechDataset,
    sampler: DurationBucketSampler,
    text_lengths: np.ndarray,
    make_trainer: Callable[[int], pl.Trainer],
    reserved: int = 0,
) -> BatchSizeSearch:
    """Try sizes from the sampler's own on; weights and random state stay unchanged.

    Args:
        module: the model and its losses; copies are trained.
        dataset: cuts → batch, with the longest cuts that augmentation can make.
        sampler: of the training data.
        text_lengths: (N,) frames that CTC needs for the text of each of the sampler's N cuts.
        make_trainer: number of updates → a trainer on one device that writes nothing.
        reserved: bytes that a run will need in addition to what is tried here.

    Raises:
        ValueError: an utterance cannot be read.
    """
    costs = sampler.size.costs(sampler.durations)
    bucket_of = np.searchsorted(sampler.duration_bins, sampler.durations, side="right")
    buckets = [costs[bucket_of == bucket] for bucket in np.unique(bucket_of)]
    longest_s, all_s = float(costs.max()), max(float(bucket.max()) * len(bucket) for bucket in buckets)
    trials: dict[float, int | None] = {}

    def fits(max_duration_s: float) -> bool:
        resized = copy.copy(sampler)
        resized.size = dataclasses.replace(sampler.size, max_duration_s=max_duration_s)
        batches = [dataset[(0, resized.select(numbers))] for numbers in _largest(resized, text_lengths)]
        for name, reason in (skipped for batch in batches for skipped in batch.skipped):
            raise ValueError(f"find_batch_size: {name} cannot be read: {reason}; restore it")
        # the first update creates the optimizer's state; passes of a shape that comes again are captured
        peak = trials[max_duration_s] = _peak_bytes(copy.deepcopy(module), 2 * batches, make_trainer, reserved)
        gc.collect()  # modules and trainers refer to each other
        torch.cuda.empty_cache()
        return peak is not None

    with torch.random.fork_rng():  # training steps seed torch's generator
        largest_s = bisect(fits, sampler.size.max_duration_s, longest_s, all_s)
    return BatchSizeSearch(trials, largest_s, longest_s, all_s)


def bisect(fits: Callable[[float], bool], start: float, least: float, most: float) -> float:
    """Return about the largest size that fits, at most ``TOLERANCE`` too small; 0 if ``least`` does not fit."""
    low, high, size = 0.0, math.inf, min(max(start, least), most)
    while high > (1 + TOLERANCE) * low:
        if fits(size):
            low = size
        else:
            high = size
        if low >= most or high <= least:
            break
        size = min(2 * low, most) if high == math.inf else max(high / 2, least) if low == 0 else (low + high) / 2
    return low


def _largest(sampler: DurationBucketSampler, text_lengths: np.ndarray) -> list[np.ndarray]:
    """Return the cuts of the micro-batches with the longest cut, the most cuts, and the most counted seconds."""
    buckets = sampler.largest_per_bucket(text_lengths)  # from short cuts to long ones; in each, the longest comes first
    counted_s = [len(numbers) * sampler.size.costs(sampler.durations[numbers[0]]) for numbers in buckets]
    chosen = {len(buckets) - 1, int(np.argmax([len(numbers) for numbers in buckets])), int(np.argmax(counted_s))}
    return [buckets[index] for index in sorted(chosen, reverse=True)]


def _peak_bytes(
    module: TrainingModule, batches: Sequence[Batch], make_trainer: Callable[[int], pl.Trainer], reserved: int
) -> int | None:
    """Return the most bytes that tensors held on the GPU during an update on each batch; None: they did not fit."""
    trainer = make_trainer(len(batches))
    device = trainer.strategy.root_device
    torch.cuda.reset_peak_memory_stats(device)
    try:
        held = torch.empty(reserved, dtype=torch.uint8, device=device)
        with warnings.catch_warnings():  # Lightning misses a validation, which is not measured
            warnings.filterwarnings("ignore", message=".*no `val_dataloader`.*")
            trainer.fit(module, train_dataloaders=DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
        torch.cuda.synchronize(device)
        del held
    except RuntimeError as error:
        if memory_error(error) is None:
            raise
        return None
    return torch.cuda.max_memory_allocated(device)
