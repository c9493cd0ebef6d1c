"""Second moments kept as one average per row and one per column."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from optim.engine.param_batch import (
    Group,
    ParamBatch,
    Scalar,
    State,
    TensorList,
    Update,
    constant,
    zero_per_axes,
    zeros,
)
from optim.engine.transform import Transform
from optim.transforms.factored.plan import Axes


def moment_state(param: Tensor, group: Group, rows: Axes, cols: Axes) -> State:
    """Return averages of zero (*shape): ``exp_avg_sq``, or ``row`` with size 1 on column axes, ``col`` on row axes."""
    if not rows and not cols:
        return {"exp_avg_sq": zeros(param, group)}
    axes = range(-param.dim(), 0)
    return {
        "row": zero_per_axes(param, tuple(axis for axis in axes if axis not in cols)),
        "col": zero_per_axes(param, tuple(axis for axis in axes if axis not in rows)),
    }


def over_moment(grad: Tensor, state: State, rows: Axes, cols: Axes, weight: Scalar, eps: float) -> Update:
    """Update the averages with a gradient, and return it over the root of what they say about each element.

        s = g² + eps
        rows or columns:  r ← r + w (mean of s over columns − r),   c ← c + w (mean of s over rows − c)
                          u = g ⊙ (r / mean of r over rows)^-½ ⊙ c^-½
        else:             v ← (1 − w) v + w s,   u = g v^-½

    Args:
        grad: any shape; not modified.
        state: as `moment_state` returns it: r and c (``row``, ``col``), or v (``exp_avg_sq``); changed in place.
        rows: axes that are rows, counted from the end.
        cols: axes that are columns.
        weight: w of this gradient, in [0, 1].
        eps: added to g².

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, algorithm 4.
    """
    square = grad * grad
    if not rows and not cols:
        # not lerp_, which takes infinity from infinity where a square overflows; rsqrt: no division per element
        moment = state["exp_avg_sq"].mul_(1 - weight).add_(square.add_(eps).mul_(weight))
        return Update(moment.rsqrt().mul_(grad), overwritable=True)
    row = state["row"].lerp_(_mean_plus(eps, square, cols), weight)
    col = state["col"].lerp_(_mean_plus(eps, square, rows), weight)
    # the sum in place of the mean leaves a number, which costs less on a CPU; that of each shape is another
    many = isinstance(row, TensorList)
    total = row if not rows else row.mean(rows, keepdim=True) if many else row.sum(rows, keepdim=True)
    # two thin factors instead of their outer product; the squares are not needed again: their memory takes the update
    update = torch.mul(grad, (row / total).rsqrt_(), out=square).mul_(col.rsqrt())
    return Update(update, 1.0 if many else (row.numel() // total.numel()) ** -0.5, overwritable=True)


def _mean_plus(eps: float, square: Tensor, axes: Axes) -> Tensor:
    """Return eps plus the mean of the squares over some axes."""
    if not axes:  # the mean of no axes would be that of all
        return square + eps
    if isinstance(square, TensorList):
        return square.mean(axes, keepdim=True).add_(eps)
    # one call for eps + total/n: on a CPU the calls on rows and columns take longer than their arithmetic
    total = square.sum(axes, keepdim=True)
    return torch.add(constant(eps, total), total, alpha=total.numel() / square.numel())


class FactoredMoments(Transform):
    """Divides by the root of a second moment, factored over the last two axes of whatever has two or more.

    The equations are those of `over_moment`, with w = t^decay_rate at the parameter's own step t = 1, 2, …, and
    earlier axes as a batch.

    State: r and c (``row``, ``col``), or v (``exp_avg_sq``).

    Args:
        decay_rate: exponent, at most 0.
        eps: the first is added to g²; the second belongs to another transform.
        name: see `Transform`.
    """

    allowed: ClassVar = {"decay_rate": "(-inf, 0]", "eps": ("[0, inf)", "[0, inf)")}
    foreach = True

    def __init__(self, decay_rate: float = -0.8, eps: tuple[float, float] = (1e-30, 1e-3), *, name: str = "") -> None:
        super().__init__(name=name, decay_rate=decay_rate, eps=eps)

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return averages of zero: ``row`` (…, R, 1) and ``col`` (…, 1, C), or ``exp_avg_sq`` (*shape)."""
        return moment_state(param, group, *_last_two(param.dim()))

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update over the root of its averaged square."""
        # w = 1 at the first step: the averages need no correction of their start at zero
        weight = batch.step ** batch.group["decay_rate"]
        rows, cols = _last_two(2 if "row" in batch.state else 1)
        return over_moment(update.value(), batch.state, rows, cols, weight, batch.group["eps"][0])


def _last_two(num_axes: int) -> tuple[Axes, Axes]:
    return ((-2,), (-1,)) if num_axes >= 2 else ((), ())
