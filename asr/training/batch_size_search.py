"""Measures how many seconds of audio fit into memory, by real updates on the largest micro-batches of an epoch."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from rich.table import Table
from torch.utils.data import DataLoader

from asr.data.loading.batch import Batch, SpeechDataset
from asr.data.loading.sampling import DurationBucketSampler
from asr.errors import is_out_of_memory
from asr.models import devices
from asr.training.module import TrainingModule

FAR = 2.0  # a proposal of more than this times what was measured must be measured itself
USABLE = 0.9  # share of the memory: allocators leave gaps, and other batches may need more than those measured
STATUS = Path("/proc/self/status")
MEMINFO = Path("/proc/meminfo")
RESET_PEAK = "5"  # what /proc/self/clear_refs takes for it, see proc(5)
# files with limit, usage and caches of a container: control groups version 2, then version 1
CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)

TrainerFactory = Callable[[list[pl.Callback], int], pl.Trainer]
"""Callbacks and number of updates → a trainer on one device that writes nothing."""


class CudaMemory:
    """The memory of a GPU in bytes, as torch allocates it.

    Attributes:
        device: the GPU.
        name: device and kind of measurement.
        available: bytes that this process may use.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = f"{torch.cuda.get_device_name(device)} ({device})"
        # without what other processes and the CUDA context hold
        self.available = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)

    def now(self) -> int:
        """Return the bytes that tensors hold."""
        return torch.cuda.memory_allocated(self.device)

    def start(self) -> None:
        """Reset the peak, and free what is cached."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Return the most bytes that tensors held since the start, and what CUDA graphs keep, after all queued work."""
        torch.cuda.synchronize(self.device)  # kernels may still be queued
        # a pass of another shape, which no graph has yet, needs its memory beside that of graphs
        return torch.cuda.max_memory_allocated(self.device) + devices.idle_graph_memory()


class ProcessMemory:
    """The main memory in bytes that this process has gained since the construction of this object.

    Approximate: the system counts whole pages, and the allocator caches some. Attributes as above.

    Args:
        num_processes: processes that share the memory.
    """

    def __init__(self, num_processes: int = 1) -> None:
        self.name = "main memory (approximate: growth of resident memory)"
        self.available = min(_in_status("MemAvailable", MEMINFO), _left_in_container()) // num_processes
        self.before = _in_status("VmRSS")

    def now(self) -> int:
        """Return the growth of resident memory."""
        return _in_status("VmRSS") - self.before

    def start(self) -> None:
        """Free what the allocator caches, and reset the peak."""
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)
        # if the system forbids it, the peak is that since the process started
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(RESET_PEAK)

    def peak(self) -> int:
        """Return the largest growth of resident memory."""
        return _in_status("VmHWM") - self.before  # the high-water mark of VmRSS


DeviceMemory = CudaMemory | ProcessMemory


def memory_of(device: torch.device, num_processes: int = 1) -> DeviceMemory:
    """Return the memory of the device that a model is on; processes on a CPU share that of the machine."""
    return CudaMemory(device) if device.type == "cuda" else ProcessMemory(num_processes)


def _in_status(name: str, file: Path = STATUS) -> int:
    """Return a number, in bytes, from a file with lines ``name:  number kB``."""
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024


def _left_in_container() -> int:
    """Return what the container's limit leaves, without file caches; 2^63 - 1 if it has no limit."""
    for limit, used, cached in CONTAINERS:
        with contextlib.suppress(OSError, ValueError, KeyError):
            folder = Path(limit).parent
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            limit_bytes, used_bytes = int(Path(limit).read_text()), int((folder / used).read_text())
            return limit_bytes - used_bytes + int(stat[cached])
    return 2**63 - 1


@dataclass(frozen=True)
class Measured:
    """An update on one micro-batch.

    Attributes:
        num_cuts: utterances in the micro-batch.
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
        device: name of the device.
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

    def table(self) -> Table:
        """Return what was measured, a row for each bucket."""
        table = Table(show_edge=False, pad_edge=False)
        for column in ("utterances", "longest s", "counted s", "peak MB", "s per update"):
            table.add_column(column, justify="right")
        for bucket in self.buckets:
            whole = bucket.sizes[-1]
            peak = "does not fit" if whole.peak is None else f"{whole.peak / 2**20:.0f}"
            seconds = "" if math.isnan(whole.seconds) else f"{whole.seconds:.3f}"
            table.add_row(str(whole.num_cuts), f"{whole.longest_s:.1f}", f"{whole.counted_s:.1f}", peak, seconds)
        return table

    def conclusions(self, now_s: float) -> list[str]:
        """Return what follows from it, as sentences; ``now_s`` is the present ``data.batch.max_duration_s``."""
        base = max(bucket.base for bucket in self.buckets) / 2**20
        lines = [
            f"measured on {self.device}: {self.available / 2**20:.0f} MB for this process, {100 * USABLE:.0f} % of it "
            f"to be used; weights, gradients and optimizer take {base:.0f} MB"
        ]
        proposed = self.proposed_s
        if proposed == math.inf:
            again = f"memory did not grow measurably: raise data.batch.max_duration_s (now {now_s:g}) and search again"
            return [*lines, again]
        if proposed == 0:
            smaller = "choose a smaller encoder, or lower data.limits.max_duration_s"
            return [*lines, f"not even the smallest micro-batch fits: {smaller}"]
        lines.append(f"proposed: data.batch.max_duration_s={proposed:g} (now {now_s:g}), the largest that fits")
        longest = max(size.counted_s / size.num_cuts for bucket in self.buckets for size in bucket.sizes)
        if proposed < longest:
            limit = "lower data.limits.max_duration_s"
            lines.append(f"the longest utterances count {longest:.1f} s each, and do not fit: {limit}")
        if proposed > FAR * max(size.counted_s for bucket in self.buckets for size in bucket.sizes):
            lines.append("that is far beyond what was measured: search again with this value before you train with it")
        if proposed > now_s:
            lines.append("larger micro-batches make updates larger and fewer: the learning rate may need to change")
        return lines


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
        module: the model and its losses; a copy is trained.
        dataset: cuts → batch, with the longest cuts that augmentation can make.
        sampler: gives the largest micro-batches of the training data.
        text_lengths: (N,) frames that CTC needs for the text of each of the sampler's N cuts.
        make_trainer: see `TrainerFactory`.
        reserved: bytes that a run will need in addition to what is measured here.
        num_processes: processes on this machine that share its memory.
    """
    memory = memory_of(make_trainer([], 1).strategy.root_device, num_processes)
    buckets = []
    with torch.random.fork_rng():  # training steps seed torch's generator
        for numbers in sampler.largest_per_bucket(text_lengths):
            # a quarter, a half and the whole of a micro-batch whose longest cut and text come first
            sizes = sorted({math.ceil(len(numbers) / part) for part in (4, 2, 1)})
            # the first update creates the optimizer's state; the second one of a size runs warm
            nums = [sizes[0], *sizes, sizes[-1]]
            batches = [dataset[(0, sampler.select(numbers[:num]))] for num in nums]
            for name, reason in (skipped for batch in batches for skipped in batch.skipped):
                raise ValueError(f"find_batch_size: {name} cannot be read: {reason}; restore it")
            probe = _run(copy.deepcopy(module), batches, make_trainer, memory)  # updates would change the weights
            updates = [[i for i, num in enumerate(nums) if num == size and i > 0] for size in sizes]
            measured = [_at(sampler, numbers[:size], probe, at) for size, at in zip(sizes, updates, strict=True)]
            num_fitting = sum(size.peak is not None for size in measured)
            buckets.append(Bucket(max(probe.bases[1:2] or probe.bases), tuple(measured[: num_fitting + 1])))
    return BatchSizeSearch(memory.name, memory.available, reserved, tuple(buckets))


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


def _at(sampler: DurationBucketSampler, numbers: np.ndarray, probe: _Probe, updates: list[int]) -> Measured:
    """Return what was measured at those updates that were on these cuts."""
    durations, num = sampler.durations[numbers], len(numbers)
    longest, counted = float(durations.max()), float(sampler.size.costs(durations).max()) * num
    if updates[-1] >= len(probe.peaks):  # memory ran out before its end
        return Measured(num, longest, counted, None)
    return Measured(num, longest, counted, max(probe.peaks[i] for i in updates), probe.seconds[updates[-1]])
