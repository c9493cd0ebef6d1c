"""Momentum on the change of the parameter."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from torch import Tensor

from optim.batch import Batch, Group, State, Update, zeros
from optim.transform import Transform


class ChangeMomentum(Transform):
    """Averages lr times the update, so that a changed lr acts with the same delay as a changed gradient.

        δ ← β₁ δ + (1 − β₁) lr u,   u ← δ

    State: δ (``delta``).

    Args:
        betas: the first is the decay of δ; the second is another transform's.
        name: see `Transform`.
    """

    allowed: ClassVar = {"betas": ("[0, 1)", "[0, 1)")}

    def __init__(self, betas: tuple[float, float], *, name: str = "") -> None:
        super().__init__(name=name, betas=betas)

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return a change of zero."""
        return {"delta": zeros(param)}

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the averaged change."""
        beta1 = batch.group["betas"][0]
        delta = batch.state["delta"].mul_(beta1)
        return Update(update.times((beta1 - 1) * batch.group["lr"]).subtract_from(delta))
