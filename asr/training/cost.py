"""What a training costs: seconds, the optimizer's share of them, and the memory that the optimizer keeps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from asr.data.loading.batch import Batch
from asr.training.boundaries import ends_update

NUM_TIMED = 1000  # of the newest updates, over which medians are taken


class TrainingCost(pl.Callback):
    """Times updates and the optimizer's steps within them; validations and checkpoints do not count.

    A resumed run goes on from the seconds behind its checkpoint: what a kill has lost is done again, and counts once.

    Args:
        every: updates between two timings of the optimizer. On a GPU the device is waited for around such a step.

    Raises:
        ValueError: ``every`` is below 1.
    """

    def __init__(self, every: int = 10) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, given {every}")
        self.every = every
        self.seconds = self.audio_s = self.audio_begun_s = 0.0
        self.tick: float | None = None
        self.update_begun = 0.0
        self.updates: deque[float] = deque(maxlen=NUM_TIMED)
        self.steps: deque[float] = deque(maxlen=NUM_TIMED)
        self.optimizer: Optimizer | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock, and watch the optimizer."""
        self.audio_begun_s = self.update_begun = self.seconds
        self.tick = time.perf_counter()
        self.optimizer = trainer.optimizers[0]
        clock = StepClock(self.every, trainer.global_step, self.steps)
        self.optimizer.register_step_pre_hook(clock.begin)
        self.optimizer.register_step_post_hook(clock.end)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count what was waited for the batch."""
        self._advance()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Take the time of an update."""
        self._advance()
        self.audio_s += batch.audio_s * trainer.world_size
        pl_module.log("train/audio_s_per_s", self.audio_s / max(1e-9, self.seconds - self.audio_begun_s))
        pl_module.log("train/elapsed_s", self.seconds)
        if ends_update(trainer):
            self.updates.append(self.seconds - self.update_begun)
            self.update_begun = self.seconds

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._advance()
        self.tick = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let it run again."""
        self.tick = time.perf_counter()

    def _advance(self) -> None:
        now = time.perf_counter()
        if self.tick is not None:
            self.seconds += now - self.tick
        self.tick = now

    def read(self) -> dict[str, float | int | None]:
        """Return seconds per update, the optimizer's share, and the bytes of its state; None: not measured."""
        update = median(self.updates) if self.updates else None
        share = median(self.steps) / update if self.steps and update else None
        return {
            "training_seconds": round(self.seconds, 1),
            "seconds_per_update": update,
            "optimizer_share": share,
            "optimizer_state_bytes": None if self.optimizer is None else state_bytes(self.optimizer),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds so far, and the newest timings."""
        return {"seconds": self.seconds, "updates": list(self.updates), "steps": list(self.steps)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.seconds = float(state_dict["seconds"])
        self.updates.extend(map(float, state_dict["updates"]))
        self.steps.extend(map(float, state_dict["steps"]))


class StepClock:
    """Times every so many steps of an optimizer, from its hooks; not the closure, in which Lightning goes backward."""

    def __init__(self, every: int, num_steps: int, durations: deque[float]) -> None:
        self.every, self.num_steps, self.durations = every, num_steps, durations
        self.begun: float | None = None

    def begin(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Note when a step begins, if it is one to be timed."""
        self.num_steps += 1
        if self.num_steps % self.every:
            self.begun = None
            return None
        self.begun = self._now(optimizer)
        closure = kwargs.get("closure")
        return None if closure is None else (args, {**kwargs, "closure": self._timed_from_end(optimizer, closure)})

    def _timed_from_end(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        def timed() -> Any:
            loss = closure()
            self.begun = self._now(optimizer)
            return loss

        return timed

    def end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Keep how long it took."""
        if self.begun is not None:
            self.durations.append(self._now(optimizer) - self.begun)

    @staticmethod
    def _now(optimizer: Optimizer) -> float:
        device = optimizer.param_groups[0]["params"][0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()


def state_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of all tensors that an optimizer keeps, its parameters left out."""
    return _bytes(optimizer.state_dict())


def _bytes(node: Any) -> int:
    if isinstance(node, Tensor):
        return node.nbytes
    if isinstance(node, Mapping):
        return sum(_bytes(value) for value in node.values())
    return sum(_bytes(value) for value in node) if isinstance(node, list | tuple) else 0


def measured_cost(trainer: pl.Trainer) -> dict[str, float | int | None]:
    """Return what the trainer's `TrainingCost` has measured; nothing where there is none."""
    found = [callback.read() for callback in trainer.callbacks if isinstance(callback, TrainingCost)]  # type: ignore[attr-defined]
    return found[0] if found else {}
