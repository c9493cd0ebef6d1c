"""Gradients over a factored second moment and over their own maximum, and matrices moved row by row."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Group, Scalar, State, Update, at_least, constant, zero_per_axes, zeros
from optim.options import SWITCH
from optim.transform import Transform


class MaxFactoredRows(Transform):
    """The direction of MaxFactor, whose largest element is 1.

    With w = clamp(t^beta2_decay, 0.001, 0.999), the weight of the newest sample:

        matrices:  R ← R + w (Σ_columns u²/(m + eps₁) − R),   C ← C + w (Σ_rows u²/(n + eps₁) − C),   V = R C / max R
        others:    v ← γ v + (1 − γ) u²,   V = v
        N = 1:     u ← u/(√V + eps₁)
        else:      u ← u/√max(V, eps₁²),   u ← u/max(max|u|, eps₁),   D = max(1, rms(u)/d)
                   matrices:  u ← sign(u) ⊙ max over the row of |u| / D
                   others:    u ← u/D

    A matrix is what has two axes or more; the last two are rows and columns, others are a batch. At d ≥ 1 the clipping
    by D never acts, for u is at most 1. ``max_norm=False`` leaves out max R and the maximum over the row.

    State: R (``row``) and C (``col``) of a matrix, v (``exp_avg_sq``) of anything else.

    Args:
        beta2_decay: exponent of the weight, at most 0.
        gamma: decay of v.
        eps: the first is the floor; the second is another transform's.
        d: rms of the normalised update above which it is scaled down.
        max_norm: divide by the largest row, and move a row as one.
        quirks: of parameters of less than two axes, take u² in place of u as the direction, and leave the normalised
            direction where v was: the reference squares the gradient, and normalises its state, in place.
        name: see `Transform`.
    """

    allowed: ClassVar = {
        "beta2_decay": "(-inf, 0]",
        "gamma": "[0, 1)",
        "eps": ("(0, inf)", "[0, inf)"),
        "d": "(0, inf)",
        "max_norm": SWITCH,
        "quirks": SWITCH,
    }

    def __init__(
        self,
        beta2_decay: float,
        gamma: float,
        eps: tuple[float, float],
        d: float,
        max_norm: bool,
        quirks: bool,
        *,
        name: str = "",
    ) -> None:
        options = {"beta2_decay": beta2_decay, "gamma": gamma, "eps": eps, "d": d}
        super().__init__(name=name, **options, max_norm=max_norm, quirks=quirks)

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return zero statistics."""
        if param.dim() < 2:
            return {"exp_avg_sq": zeros(param)}
        leading = tuple(range(-param.dim(), -2))
        return {"row": zero_per_axes(param, (*leading, -2)), "col": zero_per_axes(param, (*leading, -1))}

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update in units of its largest element."""
        if len(batch.shape) >= 2:
            return _matrix(update.value(), batch)
        u, group, eps, average = update.value(), batch.group, batch.group["eps"][0], batch.state["exp_avg_sq"]
        square = u * u
        average.mul_(group["gamma"]).add_(square, alpha=1 - group["gamma"])
        numerator = square if group["quirks"] else u
        if batch.numel == 1:
            return Update(numerator / average.sqrt().add_(eps), free=True)
        direction = numerator / average.clamp(min=eps * eps).sqrt_()
        factor = 1 / at_least(batch.maximum(direction.abs()), eps)
        if group["quirks"]:
            average.copy_(direction * factor)
        return _clipped(Update(direction, factor, free=True), batch)


def _matrix(grad: Tensor, batch: Batch) -> Update:
    group, eps = batch.group, batch.group["eps"][0]
    square = grad * grad
    row, col = _averages(square, batch, eps)
    if group["max_norm"]:
        row = row / row.amax(-2, keepdim=True).clamp_(min=eps)
    if batch.numel == 1:
        return Update(grad / (row * col).sqrt_().add_(eps), free=True)
    if group["max_norm"] and group["d"] >= 1 and _above_floor(row, col, eps, batch):
        rows = square.div_(col).amax(-1, keepdim=True).div_(row).sqrt_()
        return Update(torch.sign(grad, out=square), _over_maximum(rows, batch), free=True, rows=rows)
    # 1/√max(R C, eps²) = min(R^-½ C^-½, 1/eps); the squares are done with: their memory takes it
    u = torch.mul(row.rsqrt(), col.rsqrt(), out=square).clamp_(max=1 / eps).mul_(grad)
    rows = torch.maximum(u.amax(-1, keepdim=True), u.amin(-1, keepdim=True).neg_())
    clipped = _clipped(Update(u, _over_maximum(rows, batch), free=True), batch)
    if not group["max_norm"]:
        return clipped
    return Update(u.sign_(), clipped.scale, free=True, rows=rows)


def _averages(square: Tensor, batch: Batch, eps: float) -> tuple[Tensor, Tensor]:
    """Take the squares into R and C, and return them."""
    weight = min(0.999, max(0.001, batch.step ** batch.group["beta2_decay"]))
    num_rows, num_cols = square.shape[-2:]
    # zero + total/n: a call with tensors alone takes a third of the time of one with a number
    zero = constant(0.0, square)
    row = torch.add(zero, square.sum(-1, keepdim=True), alpha=1 / (num_cols + eps))
    col = torch.add(zero, square.sum(-2, keepdim=True), alpha=1 / (num_rows + eps))
    return batch.state["row"].lerp_(row, weight), batch.state["col"].lerp_(col, weight)


def _above_floor(row: Tensor, col: Tensor, eps: float, batch: Batch) -> bool:
    """Return whether R C is nowhere below eps², as far as that can be read at no cost.

    Then max|u| over a row needs no u, which saves four of seven passes over the elements.
    """
    lowest = batch.minimum(row) * batch.minimum(col)
    return not isinstance(lowest, Tensor) and lowest >= eps * eps


def _over_maximum(rows: Tensor, batch: Batch) -> Scalar:
    return 1 / at_least(batch.maximum(rows), batch.group["eps"][0])


def _clipped(update: Update, batch: Batch) -> Update:
    """Divide by D."""
    d: float = batch.group["d"]
    if d >= 1:
        return update
    factor = 1 / at_least(batch.rms_of(update) / d, 1.0)
    batch.note_limit(factor)
    return update.times(factor)
