"""Weight decay apart from the gradient."""

from __future__ import annotations

from typing import ClassVar

from optim.batch import Batch, Update
from optim.transform import Transform


class DecoupledDecay(Transform):
    """Shrinks the parameter by a fraction that follows lr; the update is untouched.

        p ← p (1 − lr · weight_decay)

    Args:
        weight_decay: at least 0.
        name: see `Transform`.

    Reference:
        Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101, algorithm 2.
    """

    allowed: ClassVar = {"weight_decay": "[0, inf)"}

    def __init__(self, weight_decay: float = 0.01, *, name: str = "") -> None:
        super().__init__(name=name, weight_decay=weight_decay)

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Shrink the parameters."""
        if batch.group["weight_decay"] != 0:
            batch.param.mul_(1 - batch.group["lr"] * batch.group["weight_decay"])
        return update
