"""Callbacks that measure: time and memory, optimizer health, sample texts, shares of a mixture."""

from __future__ import annotations

import math
import os
import re
import resource
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from asr.data.features import PLAYED_HZ, read_audio
from asr.data.loading.loader import Batch
from asr.training.cuda_graphs import CompiledEncoder
from asr.training.module import TrainingModule, ends_update
from asr.training.optimizer_protocols import StepsInBackward
from asr.training.speech_data_module import ResumableLoader
from werdict.scoring import Score, ScoredUtterance

NUM_FIXED_SAMPLES = 10
NUM_WORST_SAMPLES = 10


class Durations:
    """Count, mean and spread of durations in seconds; all of them count, so that rare heavy steps are seen."""

    def __init__(self, count: float = 0.0, total: float = 0.0, squares: float = 0.0) -> None:
        self.count, self.total, self.squares = count, total, squares

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.count, self.total, self.squares = self.count + 1, self.total + seconds, self.squares + seconds**2

    @property
    def mean(self) -> float | None:
        """Mean; None without any."""
        return self.total / self.count if self.count else None

    @property
    def sd(self) -> float | None:
        """Standard deviation (n - 1); None with fewer than two."""
        if self.count < 2:
            return None
        return math.sqrt(max(0.0, self.squares - self.total**2 / self.count) / (self.count - 1))


# floating-point operations per second that a GPU reaches at most in 16 bits, without sparsity, by parts of its name:
# the data sheets of NVIDIA
PEAK_FLOPS = {
    **{"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12},
    **{"A100": 312e12, "A800": 312e12, "H800": 989e12, "A40": 150e12, "A10G": 70e12, "A10": 125e12, "V100": 125e12},
    **{"L40S": 362e12, "L40": 181e12, "L4": 121e12, "RTX 4090": 165e12, "RTX 3090": 71e12, "RTX 5090": 210e12},
    **{"B200": 2250e12, "GB200": 2500e12},
}


def peak_flops(device: torch.device) -> float | None:
    """Return the floating-point operations per second that a device can make in 16 bits; None if not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_FLOPS.items() if re.search(rf"\b{part}\b", name)), None)


class TrainingCost(pl.Callback):
    """Times all updates, and the optimizer's steps within them; validations and checkpoints do not count.

    A resumed run continues from the seconds in its checkpoint, also those of the CPU, of which validations and all that
    the process does have their part: updates that a kill has lost count once. At each update
    it logs speed, padding, waiting for data and memory of the first process. The share of a GPU's peak is that of
    16-bit training: operations of a first forward and backward pass are counted, and taken to grow with the frames.
    """

    def __init__(self) -> None:
        self.frames: Tensor | int = 0  # of the micro-batches of an update, and with padding
        self.padded_frames = self.all_padded_frames = 0  # of an update, and since this process began to train
        self.peak: float | None = None  # flops of the device; None: not known, or no use
        self.flops_per_frame, self.counted_frames = 0.0, 1  # of the newest micro-batch
        self.counting: FlopCounterMode | None = None
        self.seconds = self.audio_s = self.audio_begun_s = 0.0
        self.cpu_s_before = -cpu_seconds()  # of the parts of the run before this process, minus those before its run
        self.tick: float | None = None
        self.update_begun = 0.0
        self.num_passes = 0  # of micro-batches, forward and backward
        self.updates, self.steps = Durations(), Durations()
        self.clock: StepClock | None = None
        self.optimizer: Optimizer | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clocks, and register hooks on the optimizer."""
        self.audio_begun_s = self.update_begun = self.seconds
        self.tick = time.perf_counter()
        self.optimizer = trainer.optimizers[0]
        if isinstance(loader := trainer.train_dataloader, ResumableLoader):
            loader.wait_s = 0.0  # the first batches have been read before the clock starts
        is_compiled = any(isinstance(callback, CompiledEncoder) for callback in trainer.callbacks)  # type: ignore[attr-defined]
        if "16" in str(trainer.precision) and not is_compiled:  # compiled code cannot be counted
            self.peak = peak_flops(pl_module.device)
        if isinstance(self.optimizer, StepsInBackward):
            return  # no moment when the backward pass is over and the steps begin
        self.clock = StepClock(self.steps)
        # hooks, because Lightning calls no method of a callback right around the optimizer's own work
        self.optimizer.register_step_pre_hook(self.clock.begin)
        self.optimizer.register_step_post_hook(self.clock.end)

    def on_before_backward(self, *_: Any) -> None:
        """Count passes: an optimizer may run its closure several times in an update."""
        self.num_passes += 1

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Count the time spent waiting for the batch, and its frames."""
        self._advance()
        padded_frames = len(batch) * batch.features.shape[1]
        self.frames, self.padded_frames = self.frames + batch.num_frames.sum(), self.padded_frames + padded_frames
        self.all_padded_frames += padded_frames
        self.counted_frames = padded_frames
        assert isinstance(pl_module, TrainingModule)
        is_frozen = getattr(pl_module.recognizer.encoder, "is_frozen", False)  # then its backward pass is left out
        if self.peak is not None and not (self.flops_per_frame or is_frozen) and len(batch):
            self.counting = FlopCounterMode(display=False)
            self.counting.__enter__()

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop to count operations."""
        if self.counting is not None:
            self.counting.__exit__(None, None, None)
            self.flops_per_frame = self.counting.get_total_flops() / self.counted_frames
            self.counting = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Count the time of the micro-batch, and at the end of an update its time."""
        self._advance()
        self.audio_s += batch.audio_s * trainer.world_size  # an estimate: nothing is reduced for it
        seconds = max(1e-9, self.seconds - self.audio_begun_s)
        assert isinstance(pl_module, TrainingModule)
        pl_module.log_update({"train/audio_s_per_s": self.audio_s / seconds, "train/elapsed_s": self.seconds})
        if ends_update(trainer):
            self.updates.add(self.seconds - self.update_begun)
            self.update_begun = self.seconds
            numbers = {f"train/{name}": number for name, number in peak_memory_mb().items()}
            if isinstance(loader := trainer.train_dataloader, ResumableLoader):
                numbers["train/data_wait"] = loader.wait_s / seconds
            if self.peak is not None and self.flops_per_frame:
                numbers["train/mfu"] = self.flops_per_frame * self.all_padded_frames / seconds / self.peak
            pl_module.log_update({**numbers, "train/padding": 1 - self.frames / max(1, self.padded_frames)})
            self.frames = self.padded_frames = 0

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._advance()
        self.tick = None  # seconds until the next tick do not count

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock again."""
        self.tick = time.perf_counter()

    def _advance(self) -> None:
        tick = time.perf_counter()
        if self.tick is not None:
            self.seconds += tick - self.tick  # no tick during a validation
        self.tick = tick

    def read(self) -> dict[str, float | int | None]:
        """Return seconds per update and per step of the optimizer, its share, and the bytes of its state.

        What was not measured is None.
        """
        if self.clock is not None:
            self.clock.collect(wait=True)
        update, step = self.updates.mean, self.steps.mean
        return {
            "training_seconds": round(self.seconds, 1),
            "cpu_seconds": None if math.isnan(self.cpu_s_before) else round(self.cpu_s_before + cpu_seconds(), 1),
            "num_passes": self.num_passes,
            "seconds_per_update": update,
            "optimizer_step_seconds": step,
            "optimizer_step_sd": self.steps.sd,
            "optimizer_share": step / update if step is not None and update else None,
            "optimizer_state_bytes": None if self.optimizer is None else state_bytes(self.optimizer),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds so far, and what has been timed."""
        if self.clock is not None:
            self.clock.collect(wait=True)  # saving waits for the device anyway
        timed = {"update_times": vars(self.updates), "step_times": vars(self.steps)}
        cpu_s = self.cpu_s_before + cpu_seconds()
        return {"seconds": self.seconds, "cpu_seconds": cpu_s, "num_passes": self.num_passes, **timed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the seconds and timings."""
        self.seconds = float(state_dict["seconds"])
        self.cpu_s_before += state_dict.get("cpu_seconds", math.nan)  # older checkpoints do not know them
        self.num_passes = int(state_dict.get("num_passes", 0))
        self.updates, self.steps = (Durations(**state_dict[name]) for name in ("update_times", "step_times"))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its finished children."""
    return sum(os.times()[:4])


class StepClock:
    """Times every step of an optimizer by hooks, without the closure, which runs forward and backward.

    On a GPU events are recorded between its kernels and read later: no step waits for the device.
    """

    def __init__(self, durations: Durations) -> None:
        self.durations = durations
        self.start: float | torch.cuda.Event = 0.0
        self.pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def begin(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Note the start of a step."""
        self.start = _now(optimizer)
        closure = kwargs.get("closure")
        if closure is None:
            return None

        def timed() -> Any:
            loss = closure()  # Lightning's training_step and backward
            self.start = _now(optimizer)
            return loss

        return args, {**kwargs, "closure": timed}

    def end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Keep the duration of the step, on a GPU as soon as it has passed there."""
        ended = _now(optimizer)
        if isinstance(self.start, float) and isinstance(ended, float):
            self.durations.add(ended - self.start)
        elif not isinstance(self.start, float) and not isinstance(ended, float):
            self.pending.append((self.start, ended))
            self.collect()

    def collect(self, *, wait: bool = False) -> None:
        """Read the events that the GPU has passed; or all, which waits for it."""
        while self.pending and (wait or self.pending[0][1].query()):
            begun, ended = self.pending.popleft()
            ended.synchronize()  # elapsed_time() of an event that has not passed is an error
            self.durations.add(begun.elapsed_time(ended) / 1000)


def _now(optimizer: Optimizer) -> float | torch.cuda.Event:
    device = optimizer.param_groups[0]["params"][0].device
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def state_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of all tensors in an optimizer's state, without its parameters."""
    return sum(leaf.nbytes for leaf in tree_leaves(optimizer.state_dict()) if isinstance(leaf, Tensor))


def peak_memory_mb() -> dict[str, float]:
    """Return the largest resident memory so far, and on a GPU the largest allocation."""
    memory = {"peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}  # KiB on Linux
    if torch.cuda.is_available():
        memory["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return memory


def measured_cost(trainer: pl.Trainer) -> dict[str, float | int | None]:
    """Return what the trainer's `TrainingCost` has measured; empty if it has none."""
    costs = [callback.read() for callback in trainer.callbacks if isinstance(callback, TrainingCost)]  # type: ignore[attr-defined]
    return costs[0] if costs else {}


class OptimizerHealth(pl.Callback):
    """Measures an optimizer's steps and logs the numbers; the weights stay the same, bit for bit.

    Args:
        measure: an optimizer, ``every`` and ``num_steps``, which it has made so far → a measurement, whose ``take()``
            returns the numbers of the last measured step once, and ``remove()`` ends it.
        every: measure the updates that this number divides, also in a resumed run; null: none.
    """

    def __init__(self, measure: Callable[..., Any], every: PositiveInt | None = None) -> None:
        self.measure, self.every = measure, every
        self.measurement: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start, in the process that logs."""
        if self.every is not None and trainer.is_global_zero:
            self.measurement = self.measure(trainer.optimizers[0], every=self.every, num_steps=trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Log what was measured, with the step of the update's loss.

        ``self.log`` would repeat the numbers at every update, and drop them at updates that Lightning does not log.
        """
        numbers = self.measurement.take() if self.measurement is not None else {}
        for logger in trainer.loggers if numbers else ():
            logger.log_metrics(numbers, step=trainer.global_step - 1)  # Lightning counts the loggers' step from 0

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the hooks from the optimizer."""
        if self.measurement is not None:
            self.measurement.remove()
            self.measurement = None


class SampleTables(pl.Callback):
    """Sends references, hypotheses and numbers of errors to the loggers after every validation."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log one table per development set."""
        assert isinstance(pl_module, TrainingModule)
        for name, result in pl_module.scores.items():
            log_samples(trainer.loggers, f"val/{name}", result, trainer.global_step)


def log_samples(loggers: Sequence[Any], name: str, result: Score, step: int, cuts: Iterable[Any] = ()) -> None:
    """Send the samples of a set to those loggers that show tables, with the audio of those that are among ``cuts``."""
    for logger in loggers:
        if hasattr(logger, "log_samples"):  # metrics.csv holds numbers only
            shown = samples(result)
            audio = read_audio(cuts, {utterance.utterance.id for utterance in shown})
            logger.log_samples(name, shown, step, audio, PLAYED_HZ)


def samples(result: Score) -> list[ScoredUtterance]:
    """Return utterances to look at: always the same ones, then the worst."""
    ordered = sorted(result.utterances, key=lambda item: item.utterance.id)
    fixed = ordered[:: max(1, len(ordered) // NUM_FIXED_SAMPLES)][:NUM_FIXED_SAMPLES]
    worst = sorted(ordered, key=lambda item: -item.words.errors)[:NUM_WORST_SAMPLES]
    return list({item.utterance.id: item for item in (*fixed, *worst)}.values())


class MixtureShares(pl.Callback):
    """Logs ``train/share/<corpus>`` at validations: its share in the seconds since the epoch began."""

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the shares; a run of one corpus has none."""
        loader = trainer.train_dataloader
        if trainer.sanity_checking or not isinstance(loader, ResumableLoader):
            return
        for name, share in loader.corpus_shares().items():
            pl_module.log(f"train/share/{name}", share)
