"""Averages of a run's weights: their mean over a span of updates, and an exponential moving average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from asr.models import devices

SPAN = 0.25  # a mean since the older mark covers at least this share of all updates
CPU = torch.device("cpu")
NUMBERS = ("start_update", "update", "num_averaged", "ema_updates")  # attributes that a state holds as they are

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Mark:
    """A point from which an average can be taken.

    Attributes:
        update: the average starts after this one.
        num_averaged: updates averaged before it.
        mean: their mean in float32; empty if there were none.
    """

    update: int
    num_averaged: int
    mean: Weights


class RunningAverages:
    """The sum of the weights after each update, that sum at two earlier updates, and a moving average.

    The difference of two sums gives the mean over the updates in between, as icefall computes it from two checkpoints.
    Sums are float64: a mean over updates up to n has an error of at most n · 1.1e-16 of the weights' size, because both
    sums share all rounding before the span.

    With two marks one checkpoint is enough for a mean over its newest updates. When a quarter of all updates follow the
    newer mark, the older one is dropped and a new one set: 25 to 44 % of all updates always follow the older mark. A
    mark is float32, and a mean since then is correct to 2e-7.

    The moving average is float32. After t updates its decay is min(decay, (1 + t) / (10 + t)): at first it covers about
    the last ninth of the updates.

    Args:
        weights: give names, shapes and device of the averages.
        start_update: averaging starts after this one.

    Reference:
        ``average_checkpoints_with_averaged_model`` of icefall/checkpoint.py, k2-fsa/icefall, for the difference.
        ``tf.train.ExponentialMovingAverage`` of TensorFlow, for the decay.
        Differs: icefall stores means instead of sums, and has no marks.
    """

    def __init__(self, weights: Weights, start_update: int = 0) -> None:
        self.start_update = self.update = start_update
        self.num_averaged = self.ema_updates = 0
        device = next((weight.device for weight in weights.values()), CPU)
        sizes = [weight.numel() for weight in weights.values()]
        self.flat = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        parts = zip(weights.items(), self.flat.split(sizes), strict=True)
        self.sum = {name: part.view(weight.shape) for (name, weight), part in parts}
        self.marks = [Mark(start_update, 0, {})]
        self.ema: dict[str, Tensor] | None = None

    @torch.no_grad()
    def add(self, update: int, weights: Weights, ema_decay: float | None, num_updates: int = 1) -> None:
        """Add the weights after an update.

        Args:
            update: its number; the first is 1.
            weights: names and shapes as in the constructor.
            ema_decay: per update; None: no moving average.
            num_updates: number of updates since the last call.
        """
        newest = [weights[name].float() for name in self.sum]
        # into float64: a float32 sum loses more digits with every update
        if devices.on_accelerator(self.flat):
            # at once: a thousand kernels would take longer than the update
            self.flat.add_(torch.cat([weight.flatten() for weight in newest]))
        else:
            torch._foreach_add_(list(self.sum.values()), newest)
        self.num_averaged, self.update = self.num_averaged + 1, update
        if update - self.marks[-1].update >= SPAN * update:
            mean = {name: (total / self.num_averaged).float() for name, total in self.sum.items()}
            self.marks = [self.marks[-1], Mark(update, self.num_averaged, mean)]
        self._update_ema(newest, ema_decay, num_updates)

    def _update_ema(self, newest: list[Tensor], decay: float | None, num_updates: int) -> None:
        if decay is None:
            self.ema, self.ema_updates = None, 0
            return
        if self.ema is None:
            self.ema = {name: weight.clone() for name, weight in zip(self.sum, newest, strict=True)}
        # with a constant 0.9999 a third of the average would be the initial weights after ten thousand updates
        decay = min(decay, (1 + self.ema_updates) / (10 + self.ema_updates)) ** num_updates
        get_ema_multi_avg_fn(decay)(list(self.ema.values()), newest, 0)
        self.ema_updates += num_updates

    def mean_since(self, mark: Mark) -> dict[str, Tensor]:
        """Return the float64 mean of all weights added after a mark."""
        num = self.num_averaged - mark.num_averaged
        if not mark.num_averaged:
            return {name: total / num for name, total in self.sum.items()}
        return {name: (total - mark.num_averaged * mark.mean[name].double()) / num for name, total in self.sum.items()}

    def mean_after(self, earlier: RunningAverages) -> dict[str, Tensor]:
        """Return the float64 mean of all weights added after another checkpoint of the run."""
        num = self.num_averaged - earlier.num_averaged
        return {name: (total - earlier.sum[name]) / num for name, total in self.sum.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain data, for a checkpoint."""
        marks = [{**vars(mark)} for mark in self.marks]
        numbers = {name: getattr(self, name) for name in NUMBERS}
        return {**numbers, "sum": dict(self.sum), "marks": marks, "ema": self.ema}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device = CPU) -> RunningAverages:
        """Restore the averages of a ``state_dict`` on a device."""
        sums = _on(device, state["sum"])
        averages = cls(sums)
        for name in NUMBERS:
            setattr(averages, name, state[name])
        for name, total in averages.sum.items():
            total.copy_(sums[name])
        averages.marks = [
            Mark(mark["update"], mark["num_averaged"], _on(device, mark["mean"])) for mark in state["marks"]
        ]
        averages.ema = None if state["ema"] is None else _on(device, state["ema"])
        return averages


def _on(device: torch.device, weights: Weights) -> dict[str, Tensor]:
    return {name: weight.to(device) for name, weight in weights.items()}
