"""The average of updates that were divided by their size first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from torch import Tensor

from optim.engine.batch import Group, ParamBatch, State, Update, zeros
from optim.engine.transform import Transform
from optim.transforms.adam import BETAS


class NormalizedMomentum(Transform):
    """Averages the update after it was divided by the root of its averaged square.

        v ← β₂ v + (1 − β₂) u²
        m ← β₁ m + (1 − β₁) u / (√v/√(1 − β₂ᵗ) + eps)
        u = m/(1 − β₁ᵗ)

    State: m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        betas: decay of the two averages, each in [0, 1).
        eps: added to the root, at least 0.
        name: see `Transform`.

    Reference:
        Ziyin et al. 2020, "LaProp: Separating Momentum and Adaptivity in Adam", arXiv:2002.04839.
    """

    allowed: ClassVar = {"betas": BETAS, "eps": "[0, inf)"}

    def __init__(self, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-8, *, name: str = "") -> None:
        super().__init__(name=name, betas=betas, eps=eps)

    def new_state(self, param: Tensor, group: Group, stacking_key: Hashable) -> State:
        """Return the averages m and v, both zero."""
        return {"exp_avg": zeros(param), "exp_avg_sq": zeros(param)}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the average of the normalized updates."""
        u = update.value()
        (beta1, beta2), t = batch.group["betas"], batch.step
        v = batch.state["exp_avg_sq"].mul_(beta2).addcmul_(u, u, value=1 - beta2)
        # u/(√v/c + eps) = c u/(√v + c eps) saves a pass over the elements
        c = (1 - beta2**t) ** 0.5
        root = v.sqrt().add_(c * batch.group["eps"])
        m: Tensor = batch.state["exp_avg"].mul_(beta1).addcdiv_(u, root, value=(1 - beta1) * c)
        return Update(m, 1 / (1 - beta1**t))
