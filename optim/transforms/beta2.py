"""The decay of averaged squares: constant, or PaLM's, which approaches 1."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from optim.engine.options import SWITCH
from optim.engine.param_batch import ParamBatch, Scalar
from optim.engine.transform import OptionHolder


class PalmBeta2(OptionHolder):
    """Holds the options of `beta2_of`; a rule that calls it has the schedule.

    Args:
        palm: replace ``betas[1]`` by a schedule.
        beta2_scale: exponent of the schedule, above 0.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 7.2; Chowdhery et al. 2022, "PaLM",
        arXiv:2204.02311, section 5, with 0.8.
    """

    allowed: ClassVar = {"palm": SWITCH, "beta2_scale": "(0, inf)"}

    def __init__(self, palm: bool = False, beta2_scale: float = 0.8, *, name: str = "") -> None:
        super().__init__(name=name, palm=palm, beta2_scale=beta2_scale)


def beta2_of(batch: ParamBatch) -> Scalar:
    """Return the decay β₂ of this step: ``betas[1]``, or 1 − t^-beta2_scale with ``palm``."""
    group = batch.group
    beta2: Scalar = 1 - batch.step ** -group["beta2_scale"] if group.get("palm") else group["betas"][1]
    return beta2


def beta2_correction(batch: ParamBatch) -> Scalar:
    """Return what an average of squares has to be divided by: the sum of its weights, 1 − ∏ β₂."""
    # PaLM's β₂ is 0 at the first step, so that its average never contains the zero it began with
    return 1.0 if batch.group.get("palm") else 1 - batch.group["betas"][1] ** batch.step


def correction_count(batch: ParamBatch) -> float | None:
    """Return the t of `beta2_correction` for `step_by_rms`; None if there is nothing to correct."""
    return None if batch.group.get("palm") else float(batch.step)


def average_squares(v: Tensor, u: Tensor, beta2: Scalar) -> Tensor:
    """Return v ← β₂ v + (1 − β₂) u², changed in place; u has its shape."""
    if isinstance(beta2, Tensor):
        # `value` must be a Python number, which would be read from the device
        return v.lerp_(u * u, 1 - beta2)
    return v.mul_(beta2).addcmul_(u, u, value=1 - beta2)
