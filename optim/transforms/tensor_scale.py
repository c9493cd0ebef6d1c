"""The size of a whole tensor, learnt by itself."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from torch import Tensor

from optim.batch import Batch, Group, State, Update, zero_per_axes
from optim.options import SWITCH
from optim.transform import Transform

SEED_SCALE_SPEED = 0.05  # what the reference uses, whatever it is asked for


class TensorScale(Transform):
    """Adds an update along the parameter itself, in Adam's way: the derivative over the root of its averaged square.

    At the parameter's own step k = 0, 1, …, of more than one element:

        D = ⟨p, g⟩,   z ← β₂ z + (1 − β₂) D²
        u ← u + scale_speed · √(1 − β₂ᵏ⁺¹) · D/(√z + eps) · p

    State: z (``scale_exp_avg_sq``).

    Args:
        betas: the second is the decay of z; the first is another transform's.
        eps: added to the root, at least 0.
        scale_speed: how fast the size is learnt, in (0, 1).
        quirks: ignore ``scale_speed`` and use 0.05, as the reference does.
        name: see `Transform`.
    """

    allowed: ClassVar = {
        "betas": ("[0, 1)", "[0, 1)"),
        "eps": "[0, inf)",
        "scale_speed": "(0, 1)",
        "quirks": SWITCH,
    }

    def __init__(
        self, betas: tuple[float, float], eps: float, scale_speed: float, quirks: bool, *, name: str = ""
    ) -> None:
        super().__init__(name=name, betas=betas, eps=eps, scale_speed=scale_speed, quirks=quirks)

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return an average of zero."""
        return {"scale_exp_avg_sq": zero_per_axes(param, ())} if param.numel() > 1 else {}

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update with what changes the tensor's size."""
        if batch.numel <= 1:
            return update
        beta2, derivative = batch.group["betas"][1], batch.dot(batch.param, batch.grad)
        average = batch.state["scale_exp_avg_sq"].mul_(beta2).add_((1 - beta2) * derivative * derivative)
        speed = SEED_SCALE_SPEED if batch.group["quirks"] else batch.group["scale_speed"]
        change = derivative / (batch.read(average.sqrt()) + batch.group["eps"])
        change = change * (speed * (1 - beta2**batch.step) ** 0.5)
        u = update.writable()
        along = u.addcmul_(batch.param, change) if isinstance(change, Tensor) else u.add_(batch.param, alpha=change)
        return Update(along, free=True)
