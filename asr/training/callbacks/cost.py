"""What a run costs: seconds, the optimizer's share of them, and the memory of the optimizer's state."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from asr.data.loading.batch import Batch
from asr.training.resuming.loop_counters import ends_update
from asr.training.step_in_backward import StepsInBackward

NUM_TIMED = 1000  # medians are over this many of the newest updates


class TrainingCost(pl.Callback):
    """Times updates, and the optimizer's steps within them; validations and checkpoints do not count.

    A resumed run continues from the seconds in its checkpoint: updates that a kill has lost count once.

    Args:
        every: updates between two timings of the optimizer; on a GPU such a step waits for the device before and after.

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
        """Start the clock, and register hooks on the optimizer."""
        self.audio_begun_s = self.update_begun = self.seconds
        self.tick = time.perf_counter()
        self.optimizer = trainer.optimizers[0]
        if isinstance(self.optimizer, StepsInBackward):
            return  # no moment when the backward pass is over and the steps begin
        clock = StepClock(self.every, trainer.global_step, self.steps)
        # hooks, because Lightning calls no method of a callback right around the optimizer's own work
        self.optimizer.register_step_pre_hook(clock.begin)
        self.optimizer.register_step_post_hook(clock.end)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Count the time spent waiting for the batch."""
        self._advance()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Count the time of the micro-batch, and at the end of an update its time."""
        self._advance()
        self.audio_s += batch.audio_s * trainer.world_size  # an estimate: nothing is reduced for it
        pl_module.log("train/audio_s_per_s", self.audio_s / max(1e-9, self.seconds - self.audio_begun_s))
        pl_module.log("train/elapsed_s", self.seconds)
        if ends_update(trainer):
            self.updates.append(self.seconds - self.update_begun)
            self.update_begun = self.seconds

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._advance()
        self.tick = None  # seconds until the next tick do not count

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock again."""
        self.tick = time.perf_counter()

    def _advance(self) -> None:
        now = time.perf_counter()
        if self.tick is not None:
            self.seconds += now - self.tick  # no tick during a validation
        self.tick = now

    def read(self) -> dict[str, float | int | None]:
        """Return seconds per update, the optimizer's share, and the bytes of its state; None if not measured."""
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
        """Restore the seconds and timings."""
        self.seconds = float(state_dict["seconds"])
        self.updates.extend(map(float, state_dict["updates"]))
        self.steps.extend(map(float, state_dict["steps"]))


class StepClock:
    """Times every n-th step of an optimizer by hooks, without the closure, which runs forward and backward."""

    def __init__(self, every: int, num_steps: int, durations: deque[float]) -> None:
        self.every, self.num_steps, self.durations = every, num_steps, durations
        self.begun: float | None = None

    def begin(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Note the start of a step that is to be timed."""
        self.num_steps += 1
        if self.num_steps % self.every:
            self.begun = None
            return None
        self.begun = self._now(optimizer)
        closure = kwargs.get("closure")
        return None if closure is None else (args, {**kwargs, "closure": self._timed_from_end(optimizer, closure)})

    def _timed_from_end(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        def timed() -> Any:
            loss = closure()  # Lightning's training_step and backward
            self.begun = self._now(optimizer)
            return loss

        return timed

    def end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Keep the duration of a timed step."""
        if self.begun is not None:
            self.durations.append(self._now(optimizer) - self.begun)

    @staticmethod
    def _now(optimizer: Optimizer) -> float:
        device = optimizer.param_groups[0]["params"][0].device
        if device.type == "cuda":
            # kernels run later than they are called: without this a step would take only the time of its launches
            torch.cuda.synchronize(device)
        return time.perf_counter()


def state_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of all tensors in an optimizer's state, without its parameters."""
    return sum(leaf.nbytes for leaf in tree_leaves(optimizer.state_dict()) if isinstance(leaf, Tensor))


def measured_cost(trainer: pl.Trainer) -> dict[str, float | int | None]:
    """Return what the trainer's `TrainingCost` has measured; empty if it has none."""
    found = [callback.read() for callback in trainer.callbacks if isinstance(callback, TrainingCost)]  # type: ignore[attr-defined]
    return found[0] if found else {}
