"""A bound of the parameters themselves."""

from __future__ import annotations

from typing import ClassVar

from optim.batch import Batch, Update
from optim.transform import Transform


class Clamp(Transform):
    """Clamps every element of the parameter to ±param_max, at every tenth step: at the first, the eleventh, ….

    Args:
        param_max: in (0.1, 1e4]; between two clamps it may be exceeded.
        name: see `Transform`.
    """

    allowed: ClassVar = {"param_max": "(0.1, 1e4]"}
    acts_after_step: ClassVar = True
    every: ClassVar = 10

    def __init__(self, param_max: float, *, name: str = "") -> None:
        super().__init__(name=name, param_max=param_max)

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Leave the update as it is."""
        return update

    def after_step(self, batch: Batch) -> None:
        """Clamp the parameters where it is due."""
        if (batch.step - 1) % self.every == 0:
            batch.param.clamp_(-batch.group["param_max"], batch.group["param_max"])
