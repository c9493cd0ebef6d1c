"""Steps that leave NaN nowhere."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Update
from optim.options import SWITCH
from optim.transform import Transform


class SkipNan(Transform):
    """Keeps the old value of every element of a parameter or statistic whose new one is NaN; the first of a chain.

    Costs a copy of the parameter and its statistics, one parameter at a time. Nothing waits for the device.

    Args:
        skip_nan_updates: False does nothing.
        name: see `Transform`.
    """

    allowed: ClassVar = {"skip_nan_updates": SWITCH}
    acts_after_step: ClassVar = True

    def __init__(self, skip_nan_updates: bool = True, *, name: str = "") -> None:
        super().__init__(name=name, skip_nan_updates=skip_nan_updates)
        self.before: dict[int, list[Tensor]] = {}

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Take copies."""
        if batch.group["skip_nan_updates"]:
            self.before[id(batch.param)] = [x.clone() for x in _tensors(batch)]
        return update

    def after_step(self, batch: Batch) -> None:
        """Put back what has become NaN."""
        if batch.group["skip_nan_updates"]:
            for x, old in zip(_tensors(batch), self.before.pop(id(batch.param)), strict=True):
                x.copy_(torch.where(x.isnan(), old, x))


def _tensors(batch: Batch) -> list[Tensor]:
    return [batch.param, *(x for x in batch.state.values() if isinstance(x, Tensor))]
