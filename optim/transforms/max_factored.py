"""Factored second moments over their largest row: what MaxFactor divides by."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Group, State, Update, constant, zero_per_axes, zeros
from optim.options import SWITCH
from optim.transform import Transform


class MaxFactoredMoments(Transform):
    """Divides by the root of a second moment that is one average per row times one per column, over the largest row.

    With w = clamp(t^beta2_decay, 0.001, 0.999), the weight of the newest sample:

        matrices:  R ← R + w (Σ_columns u²/(m + eps₁) − R),   C ← C + w (Σ_rows u²/(n + eps₁) − C),   V = R C / max R
        others:    v ← γ v + (1 − γ) u²,   V = v
        u ← u/√max(V, eps₁²)

    A matrix is what has two axes or more; the last two are rows and columns, others are a batch.

    State: R (``row``) and C (``col``) of a matrix, v (``exp_avg_sq``) of anything else.

    Args:
        beta2_decay: exponent of the weight, at most 0.
        gamma: decay of v.
        eps: the first is the floor; the second is another transform's.
        max_norm: divide by the largest row; V = R C without.
        quirks: of parameters of less than two axes, return u² in place of u: the reference squares the gradient in
            place before it uses it.
        name: see `Transform`.
    """

    allowed: ClassVar = {
        "beta2_decay": "(-inf, 0]",
        "gamma": "[0, 1)",
        "eps": ("(0, inf)", "[0, inf)"),
        "max_norm": SWITCH,
        "quirks": SWITCH,
    }

    def __init__(
        self,
        beta2_decay: float,
        gamma: float,
        eps: tuple[float, float],
        max_norm: bool,
        quirks: bool,
        *,
        name: str = "",
    ) -> None:
        options = {"beta2_decay": beta2_decay, "gamma": gamma, "eps": eps}
        super().__init__(name=name, **options, max_norm=max_norm, quirks=quirks)

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return zero statistics."""
        if param.dim() < 2:
            return {"exp_avg_sq": zeros(param)}
        leading = tuple(range(-param.dim(), -2))
        return {"row": zero_per_axes(param, (*leading, -2)), "col": zero_per_axes(param, (*leading, -1))}

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update over the root of its averaged square."""
        u, group, eps = update.value(), batch.group, batch.group["eps"][0]
        if len(batch.shape) >= 2:
            weight = min(0.999, max(0.001, batch.step ** group["beta2_decay"]))
            return Update(_over_root(u, batch.state, weight, eps, group["max_norm"]), free=True)
        square, average = u * u, batch.state["exp_avg_sq"]
        average.mul_(group["gamma"]).add_(square, alpha=1 - group["gamma"])
        root = average.sqrt().add_(eps) if batch.numel == 1 else average.clamp(min=eps * eps).sqrt_()
        return Update((square if group["quirks"] else u) / root, free=True)


def _over_root(grad: Tensor, state: State, weight: float, eps: float, max_norm: bool) -> Tensor:
    square = grad * grad
    num_rows, num_cols = grad.shape[-2:]
    # zero + total/n: a call with tensors alone takes a third of the time of one with a number
    zero = constant(0.0, square)
    row = state["row"].lerp_(torch.add(zero, square.sum(-1, keepdim=True), alpha=1 / (num_cols + eps)), weight)
    col = state["col"].lerp_(torch.add(zero, square.sum(-2, keepdim=True), alpha=1 / (num_rows + eps)), weight)
    if max_norm:
        row = row / row.amax(-2, keepdim=True).clamp_(min=eps)
    # 1/√max(R C, eps²) = min(R^-½ C^-½, 1/eps); the squares are done with: their memory takes it
    return torch.mul(row.rsqrt(), col.rsqrt(), out=square).clamp_(max=1 / eps).mul_(grad)
