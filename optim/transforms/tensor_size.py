"""How large a tensor is, and how the loss changes with its size."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Group, Scalar, State, Update, state_dtype, zero_per_axes
from optim.options import WHOLE
from optim.transform import Transform


class TensorSize(Transform):
    """Measures tensors for the transforms around it; the gradient passes as it is.

    At the parameter's own step t = 1, 2, …, of more than one element, in periods of P = size_update_period steps, with
    D = ⟨p, u⟩, the derivative of the loss by the logarithm of the size:

        S ← sum of D over the steps of this period
        z ← β₂ᴾ z + (1 − β₂ᴾ) mean of D² over the steps of this period        with P = 1 from t = 2
        r ← rms(p)                                                            at t = 1, and at the end of a period

    State: r (``param_rms``), S (``scale_grad``) and z (``scale_exp_avg_sq``).

    Args:
        betas: the second is the decay of z per step; the first is another transform's.
        size_update_period: number of steps, at least 1.
        name: see `Transform`.
    """

    allowed: ClassVar = {"betas": ("[0, 1)", "[0, 1)"), "size_update_period": "[1, inf)" + WHOLE}

    def __init__(
        self, betas: tuple[float, float] = (0.9, 0.98), size_update_period: int = 4, *, name: str = ""
    ) -> None:
        super().__init__(name=name, betas=betas, size_update_period=size_update_period)

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return the parameter's size, and derivatives of zero."""
        if param.numel() <= 1:
            return {}
        norm = torch.linalg.vector_norm(param.detach(), dtype=state_dtype(param))
        rms = (norm / param.numel() ** 0.5).reshape([1] * param.dim())
        return {
            "param_rms": rms,
            "scale_grad": zero_per_axes(param, ()),
            "scale_exp_avg_sq": zero_per_axes(param, ()),
        }

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update as it is."""
        if batch.numel > 1:
            direction = update.direction if update.rows is None else update.direction * update.rows
            _take_in(batch.dot(batch.param, direction) * update.scale, batch)
            if period_ends(batch):
                _set(batch.state["param_rms"], batch.rms(batch.param))
        return update


def period_ends(batch: Batch) -> bool:
    """Return whether this is the last step of a period."""
    return batch.step % int(batch.group["size_update_period"]) == 0


def _take_in(derivative: Scalar, batch: Batch) -> None:
    """Add a derivative to the sum and to the average of squares."""
    state, period = batch.state, batch.group["size_update_period"]
    total, average = batch.read(state["scale_grad"]), batch.read(state["scale_exp_avg_sq"])
    kept = batch.group["betas"][1] ** period
    if (batch.step - 1) % period == 0:
        total, average = 0.0, average * kept
    _set(state["scale_grad"], total + derivative)
    if batch.step > 1 or period > 1:
        _set(state["scale_exp_avg_sq"], average + derivative * derivative * ((1 - kept) / period))


def _set(target: Tensor, value: Scalar) -> None:
    if isinstance(value, Tensor):
        target.copy_(value)
    else:
        target.fill_(value)
