"""The gradient over the root of its averaged square, faded in while the average is young."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Group, State, Update, zeros
from optim.transform import Transform


class FadingRms(Transform):
    """Divides by the root of the averaged square, which starts at zero and is not corrected: the factor fades in.

    At the parameter's own step k = 0, 1, …, of N elements:

        v ← β₂ v + (1 − β₂) u²
        u ← (1 − β₂ᵏ) · u/(√v + eps)          with √(1 − β₂ᵏ) where N = 1

    State: v (``exp_avg_sq``).

    Args:
        betas: the second is the decay of v; the first is another transform's.
        eps: added to the root, at least 0.
        name: see `Transform`.
    """

    allowed: ClassVar = {"betas": ("[0, 1)", "[0, 1)"), "eps": "[0, inf)"}

    def __init__(self, betas: tuple[float, float], eps: float, *, name: str = "") -> None:
        super().__init__(name=name, betas=betas, eps=eps)

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return an average of zero."""
        return {"exp_avg_sq": zeros(param)}

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update over the root of its averaged square."""
        u, beta2 = update.value(), batch.group["betas"][1]
        v = batch.state["exp_avg_sq"].mul_(beta2).addcmul_(u, u, value=1 - beta2)
        faded = 1 - beta2 ** (batch.step - 1)
        scale = faded if batch.numel > 1 else faded**0.5
        root = v.sqrt().add_(batch.group["eps"])
        return Update(torch.div(u, root, out=root), scale, free=True)
