"""Adafactor's step: relative to the size of the parameter, and by default chosen by the step count."""

from __future__ import annotations

from typing import ClassVar

from optim.batch import Batch, Group, Scalar, Update, at_least
from optim.options import SWITCH
from optim.transform import Transform


class RelativeStep(Transform):
    """Multiplies by lr, or by a step of its own, and by the size of the parameter; weight decay goes by the same step.

        a = lr,  or with relative_step  min(10⁻², 1/√t)  (10⁻⁶ t in place of 10⁻² with warmup_init)
        a ← max(eps₂, rms(p)) · a                           with scale_parameter
        p ← p − weight_decay · a · p,   u ← a u

    Args:
        eps: the second is the floor of rms(p); the first is another transform's.
        weight_decay: times a, the fraction taken off per step.
        scale_parameter: make the step relative to rms(p).
        relative_step: choose the step by t instead of lr.
        warmup_init: begin the relative step at 10⁻⁶.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, sections 8 and 9; options of
        transformers.optimization.Adafactor.
    """

    allowed: ClassVar = {
        "eps": ("[0, inf)", "[0, inf)"),
        "weight_decay": "[0, inf)",
        "scale_parameter": SWITCH,
        "relative_step": SWITCH,
        "warmup_init": SWITCH,
    }

    def __init__(
        self,
        eps: tuple[float, float] = (1e-30, 1e-3),
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
        *,
        name: str = "",
    ) -> None:
        options = {"eps": eps, "weight_decay": weight_decay, "scale_parameter": scale_parameter}
        super().__init__(name=name, **options, relative_step=relative_step, warmup_init=warmup_init)

    def check(self, group: Group) -> None:
        """Refuse an lr that would be ignored, and a step that nobody chooses."""
        if (group["lr"] is None) != group["relative_step"]:
            raise ValueError(
                f"Adafactor takes its step either from lr or from relative_step, given lr={group['lr']} and "
                f"relative_step={group['relative_step']}; set lr with relative_step=False, or neither"
            )
        if group["warmup_init"] and not group["relative_step"]:
            raise ValueError("warmup_init=True begins a relative step; it needs relative_step=True and no lr")

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Decay the parameter, and return the update times the step."""
        group, step_size = batch.group, base_step(batch.group, batch.step)
        if group["scale_parameter"]:
            step_size = at_least(batch.rms(batch.param), group["eps"][1]) * step_size
        if group["weight_decay"] != 0:
            batch.param.mul_(1 - group["weight_decay"] * step_size)
        return update.times(step_size)


def base_step(group: Group, step: int) -> Scalar:
    """Return a before it is made relative to the parameter."""
    if not group["relative_step"]:
        lr: Scalar = group["lr"]
        return lr
    return min(1e-6 * step if group["warmup_init"] else 1e-2, step**-0.5)
