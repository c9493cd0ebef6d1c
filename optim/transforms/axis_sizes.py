"""Updates in units of the size of each row, column and further slice of the parameter."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Group, State, Update, state_dtype
from optim.transform import Transform

REFRESH_EVERY = 1000  # steps after which the sizes are estimated anew


class AxisSizes(Transform):
    """Multiplies each element by its estimated size P, a product of one factor per axis.

        u ← u ⊙ P

    At the parameter's own step k = 0, 1, …: where k mod 1000 = 0, P starts from 1 and every axis is fitted in order,
    else axis k mod ndim. With q = max(p², rms_eps²)/P², the factor of the axis is multiplied by
    √(mean of q over all other axes), or by √(mean of q) where N ≤ 2 · size of the axis. Single elements pass as they
    are.

    State: P as its factors (``size_<axis>``).

    Args:
        rms_eps: floor of the estimated sizes, in (0, 0.1).
        name: see `Transform`.
    """

    allowed: ClassVar = {"rms_eps": "(0, 0.1)"}

    def __init__(self, rms_eps: float, *, name: str = "") -> None:
        super().__init__(name=name, rms_eps=rms_eps)

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return sizes of one."""
        if param.numel() <= 1:
            return {}
        shapes = [[size if i == axis else 1 for i in range(param.dim())] for axis, size in enumerate(param.shape)]
        return {f"size_{i}": param.new_ones(shape, dtype=state_dtype(param)) for i, shape in enumerate(shapes)}

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Fit the sizes that are due, and return the update in units of them."""
        if batch.numel <= 1:
            return update
        sizes = [batch.state[f"size_{axis}"] for axis in range(len(batch.shape))]
        _fit(sizes, batch, batch.group["rms_eps"])
        direction = update.direction if update.free else update.direction.clone()
        for size in sizes:
            direction.mul_(size)
        return Update(direction, update.scale, free=True)


def _fit(sizes: list[Tensor], batch: Batch, floor: float) -> None:
    k = batch.step - 1
    axes = [k % len(sizes)]
    if k % REFRESH_EVERY == 0:
        axes = list(range(len(sizes)))
        for size in sizes:
            size.fill_(1)
    for axis in axes:
        # made anew for each axis: memory that is overwritten costs less than memory that is kept
        square = (batch.param * batch.param).clamp_(min=floor * floor)
        _fit_axis(sizes, axis, square, batch)


def _fit_axis(sizes: list[Tensor], axis: int, square: Tensor, batch: Batch) -> None:
    """Fit the factor of one axis; overwrites the squares."""
    pooled = batch.numel <= 2 * batch.shape[axis]
    for other, size in enumerate(sizes):
        if pooled or other != axis:
            square.mul_(size.square().reciprocal_())
    if pooled:
        # few elements per index: the mean over all of them is the safer estimate
        sizes[axis].mul_(batch.mean(square) ** 0.5)
        return
    others = tuple(i - len(sizes) for i in range(len(sizes)) if i != axis)
    count = math.prod(batch.shape[i] for i in others)
    # the axis' own factor cancels: it divides q, and is multiplied
    torch.sqrt(square.sum(others, keepdim=True).mul_(1 / count), out=sizes[axis])
