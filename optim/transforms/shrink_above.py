"""Weight decay that stops at a target size."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from optim.batch import Batch, Update
from optim.transform import Transform


class ShrinkAbove(Transform):
    """Takes a fraction off every tensor whose RMS is above a target; single elements are left alone.

        p ← p (1 − weight_decay)     if N > 1 and rms(p) > target_rms

    Args:
        weight_decay: fraction per step, not multiplied by lr, in [0, 0.1].
        target_rms: in (0, 10].
        name: see `Transform`.
    """

    allowed: ClassVar = {"weight_decay": "[0, 0.1]", "target_rms": "(0, 10]"}

    def __init__(self, weight_decay: float, target_rms: float, *, name: str = "") -> None:
        super().__init__(name=name, weight_decay=weight_decay, target_rms=target_rms)

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Shrink the parameters; the update is untouched."""
        fraction = batch.group["weight_decay"]
        if fraction > 0 and batch.numel > 1:
            norm, limit = batch.norm(batch.param), batch.group["target_rms"] * batch.numel**0.5
            if isinstance(norm, Tensor):
                # decided on the device, in the parameter's type: bool times float would have the default one
                batch.param.mul_(1 - fraction * (norm > limit).to(batch.param.dtype))
            elif norm > limit:
                batch.param.mul_(1 - fraction)
        return update
