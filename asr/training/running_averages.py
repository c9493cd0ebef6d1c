"""Averages of the weights of a training: the mean over a span of updates, and an exponential moving average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

SPAN = 0.25  # of all updates: the least that a mean since the older mark is over
CPU = torch.device("cpu")
NUMBERS = ("begun", "update", "num", "ema_updates")  # of the state

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Mark:
    """Where an average may begin.

    Attributes:
        update: the average begins behind this one.
        num: weights that were added until then.
        mean: of those, in float32; empty where there are none.
    """

    update: int
    num: int
    mean: Weights


class RunningAverages:
    """The sum of the weights behind every update so far, what it was at two earlier updates, and a moving average.

    The difference of two sums gives the mean over the updates in between, as icefall has it of two checkpoints. Sums
    are in float64: the mean over any span that ends behind n updates is right to n · 1.1e-16 of the weights' size,
    because both sums share all rounding before the span.

    Two marks make one checkpoint enough for a mean over its newest updates. Whenever the newer one has a quarter of all
    updates behind it, the older is given up and a new one set: so the older always has between a quarter and 44 % of
    them. A mark is in float32, and a mean since then right to 2e-7.

    The moving average is in float32. Behind t updates its decay is min(decay, (1 + t) / (10 + t)): it begins as one
    over about the last ninth.

    Args:
        weights: whose shapes, names and device the averages have.
        begun: the update behind which averaging begins.

    Reference:
        ``average_checkpoints_with_averaged_model`` of icefall/checkpoint.py, k2-fsa/icefall, for the difference.
        ``tf.train.ExponentialMovingAverage`` of TensorFlow, for the decay.
        Differs: icefall keeps means instead of sums, and has no marks.
    """

    def __init__(self, weights: Weights, begun: int = 0) -> None:
        self.begun = self.update = begun
        self.num = self.ema_updates = 0
        self.sum = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
        self.marks = [Mark(begun, 0, {})]
        self.ema: dict[str, Tensor] | None = None

    @torch.no_grad()
    def add(self, update: int, weights: Weights, ema_decay: float | None, num_updates: int = 1) -> None:
        """Take in the weights behind an update.

        Args:
            update: its number; the first is 1.
            weights: as at the beginning.
            ema_decay: of one update; None: there is no moving average.
            num_updates: that the weights stand for.
        """
        for name, total in self.sum.items():
            total.add_(weights[name])
        self.num, self.update = self.num + 1, update
        if update - self.marks[-1].update >= SPAN * update:
            mean = {name: (total / self.num).float() for name, total in self.sum.items()}
            self.marks = [self.marks[-1], Mark(update, self.num, mean)]
        self._follow(weights, ema_decay, num_updates)

    def _follow(self, weights: Weights, decay: float | None, num_updates: int) -> None:
        if decay is None:
            self.ema, self.ema_updates = None, 0
            return
        if self.ema is None:
            self.ema = {name: weights[name].detach().float().clone() for name in self.sum}
        decay = min(decay, (1 + self.ema_updates) / (10 + self.ema_updates)) ** num_updates
        follow = get_ema_multi_avg_fn(decay)
        follow(list(self.ema.values()), [weights[name].detach().float() for name in self.ema], 0)
        self.ema_updates += num_updates

    def mean_since(self, mark: Mark) -> dict[str, Tensor]:
        """Return the mean of all weights that were added behind a mark, in float64."""
        num = self.num - mark.num
        if not mark.num:
            return {name: total / num for name, total in self.sum.items()}
        return {name: (total - mark.num * mark.mean[name].double()) / num for name, total in self.sum.items()}

    def mean_behind(self, earlier: RunningAverages) -> dict[str, Tensor]:
        """Return the mean of all weights that were added behind another checkpoint of the training, in float64."""
        num = self.num - earlier.num
        return {name: (total - earlier.sum[name]) / num for name, total in self.sum.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain data, for a checkpoint."""
        marks = [{"update": mark.update, "num": mark.num, "mean": dict(mark.mean)} for mark in self.marks]
        numbers = {name: getattr(self, name) for name in NUMBERS}
        return {**numbers, "sum": dict(self.sum), "marks": marks, "ema": self.ema}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device = CPU) -> RunningAverages:
        """Return what ``state_dict`` has described, on a device."""
        averages = cls({})
        for name in NUMBERS:
            setattr(averages, name, int(state[name]))
        averages.sum = _on(device, state["sum"])
        averages.marks = [Mark(int(m["update"]), int(m["num"]), _on(device, m["mean"])) for m in state["marks"]]
        averages.ema = None if state["ema"] is None else _on(device, state["ema"])
        return averages


def _on(device: torch.device, weights: Weights) -> dict[str, Tensor]:
    return {name: weight.to(device) for name, weight in weights.items()}
