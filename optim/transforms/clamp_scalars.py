"""A bound of parameters of one element."""

from __future__ import annotations

from typing import ClassVar

from optim.batch import Batch, Update
from optim.transform import Transform


class ClampScalars(Transform):
    """Clamps a parameter of one element to ±scalar_max after every step; larger ones are left alone.

    Args:
        scalar_max: above 0.
        name: see `Transform`.
    """

    allowed: ClassVar = {"scalar_max": "(0, inf)"}
    acts_after_step: ClassVar = True

    def __init__(self, scalar_max: float = 10.0, *, name: str = "") -> None:
        super().__init__(name=name, scalar_max=scalar_max)

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Leave the update as it is."""
        return update

    def after_step(self, batch: Batch) -> None:
        """Clamp the parameters."""
        if batch.numel == 1:
            batch.param.clamp_(-batch.group["scalar_max"], batch.group["scalar_max"])
