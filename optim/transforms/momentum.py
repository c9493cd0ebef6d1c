"""A moving average of the updates."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from torch import Tensor

from optim.batch import Batch, Group, State, Update, zeros
from optim.options import OR_NONE
from optim.transform import Transform


class Momentum(Transform):
    """Replaces the update by its moving average, without correction of the bias towards zero.

        m ← beta1 m + (1 − beta1) u,   u ← m

    State: m (``exp_avg``), unless beta1 is None.

    Args:
        beta1: decay, in [0, 1); None leaves the update as it is.
        name: see `Transform`.
    """

    allowed: ClassVar = {"beta1": "[0, 1)" + OR_NONE}

    def __init__(self, beta1: float | None = 0.9, *, name: str = "") -> None:
        super().__init__(name=name, beta1=beta1)

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return an average of zero, where there is one."""
        return {} if group["beta1"] is None else {"exp_avg": zeros(param)}

    def __call__(self, update: Update, batch: Batch) -> Update | Tensor:
        """Return the average."""
        beta1 = batch.group["beta1"]
        if beta1 is None:
            return update
        average: Tensor = batch.state["exp_avg"].lerp_(update.value(), 1 - beta1)
        return average
