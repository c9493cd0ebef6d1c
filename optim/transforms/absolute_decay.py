"""Weight decay that need not follow the learning rate."""

from __future__ import annotations

from typing import ClassVar

from optim.batch import Batch, Group, Update
from optim.options import OR_NONE
from optim.transform import Transform


class AbsoluteDecay(Transform):
    """Shrinks the parameter by a fraction, or by one that follows a power of lr; the update is untouched.

        p ← p (1 − weight_decay_rate),  or with weight_decay_rate_lr_exponent
        p ← p (1 − weight_decay_rate · lr^weight_decay_rate_lr_exponent)                     a rate of None counts as 1

    Args:
        weight_decay_rate: None for none.
        weight_decay_rate_lr_exponent: None, or 0, for none.
        name: see `Transform`.
    """

    allowed: ClassVar = {
        "weight_decay_rate": "[0, inf)" + OR_NONE,
        "weight_decay_rate_lr_exponent": "(-inf, inf)" + OR_NONE,
    }

    def __init__(
        self,
        weight_decay_rate: float | None = None,
        weight_decay_rate_lr_exponent: float | None = None,
        *,
        name: str = "",
    ) -> None:
        options = {"weight_decay_rate": weight_decay_rate}
        super().__init__(name=name, **options, weight_decay_rate_lr_exponent=weight_decay_rate_lr_exponent)

    def check(self, group: Group) -> None:
        """Refuse a rate of zero that would decay."""
        if group["weight_decay_rate"] == 0 and group["weight_decay_rate_lr_exponent"]:
            raise ValueError(
                f"weight_decay_rate=0 with weight_decay_rate_lr_exponent={group['weight_decay_rate_lr_exponent']} "
                "could mean no decay, or decay by a power of lr alone; set the exponent to None for the first, the "
                "rate to None or 1 for the second"
            )

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Shrink the parameters."""
        rate, exponent = batch.group["weight_decay_rate"], batch.group["weight_decay_rate_lr_exponent"]
        if exponent:
            batch.param.mul_(1 - (1.0 if rate is None else rate) * batch.group["lr"] ** exponent)
        elif rate:
            batch.param.mul_(1 - rate)
        return update
