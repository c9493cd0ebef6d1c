"""MaxFactor's step: relative to the size of the parameter, bounded by lr and by 1/√t."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from optim.batch import Batch, Group, Scalar, Update, at_least
from optim.transform import Transform


class BoundedRelativeStep(Transform):
    """Multiplies by a relative step that falls with the step count; decays the weights by lr.

        ρ = max(min_lr, min(lr, 1/√t)),   α = max(eps₂, rms(p)) ρ          (p before decay)
        p ← p (1 − lr · weight_decay)
        u ← α u,   or  α · scalar_boost · u  of a single element

    Args:
        eps: the second is the floor of rms(p); the first is another transform's.
        weight_decay: times lr, the fraction taken off per step.
        min_lr: lower bound of ρ.
        scalar_boost: factor of the step of single elements.
        name: see `Transform`.
    """

    allowed: ClassVar = {
        "eps": ("(0, inf)", "[0, inf)"),
        "weight_decay": "[0, inf)",
        "min_lr": "[0, inf)",
        "scalar_boost": "(0, inf)",
    }

    def __init__(
        self, eps: tuple[float, float], weight_decay: float, min_lr: float, scalar_boost: float, *, name: str = ""
    ) -> None:
        options = {"eps": eps, "weight_decay": weight_decay}
        super().__init__(name=name, **options, min_lr=min_lr, scalar_boost=scalar_boost)

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Decay the parameter, and return the update times the step."""
        group, lr = batch.group, batch.group["lr"]
        size = batch.norm(batch.param) / (batch.numel**0.5 + 1e-12)
        alpha = at_least(size, group["eps"][1]) * bounded(group, batch.step)
        if group["weight_decay"] > 0:
            batch.param.mul_(1 - lr * group["weight_decay"])
        return update.times(alpha * group["scalar_boost"] if batch.numel == 1 else alpha)


def bounded(group: Group, step: int) -> Scalar:
    """Return ρ."""
    lr, latest = group["lr"], step**-0.5
    if isinstance(lr, Tensor):
        return lr.clamp(max=latest).clamp_(min=group["min_lr"])
    return max(group["min_lr"], min(lr, latest))
