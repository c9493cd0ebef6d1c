"""Second moments kept as one average per row and one per column."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Group, State, Update, constant, zero_per_axes, zeros
from optim.transform import Transform

Axes = tuple[int, ...]


def factored_state(param: Tensor, rows: Axes, cols: Axes) -> State:
    """Return averages of zero: ``row`` has size 1 on the column axes, ``col`` on the row axes."""
    axes = range(-param.dim(), 0)
    return {
        "row": zero_per_axes(param, tuple(axis for axis in axes if axis not in cols)),
        "col": zero_per_axes(param, tuple(axis for axis in axes if axis not in rows)),
    }


def factored_direction(grad: Tensor, state: State, rows: Axes, cols: Axes, weight: float, eps: float) -> Update:
    """Take a gradient into the averages, and return it over the root of what they say about each element.

        s = g² + eps,   r ← r + w (mean of s over columns − r),   c ← c + w (mean of s over rows − c)
        u = g ⊙ (r / mean r)^-½ ⊙ c^-½

    Args:
        grad: any shape; not modified.
        state: ``row`` and ``col`` as `factored_state` makes them, changed in place.
        rows: axes that are rows, counted from the end; none stands for an axis without extent.
        cols: axes that are columns.
        weight: of this gradient, in [0, 1].
        eps: added to g².
    """
    square = grad * grad
    row = _average_in(state["row"], square, cols, weight, eps)
    col = _average_in(state["col"], square, rows, weight, eps)
    total = row.sum(rows, keepdim=True) if rows else row
    # the squares are done with: their memory takes the update
    update = torch.mul(grad, row.div(total).rsqrt_(), out=square).mul_(col.rsqrt())
    return Update(update, (row.numel() // total.numel()) ** -0.5, free=True)


def _average_in(average: Tensor, square: Tensor, axes: Axes, weight: float, eps: float) -> Tensor:
    """Move an average towards eps plus the mean of the squares over some axes."""
    total = square.sum(axes, keepdim=True) if axes else square
    # one call for eps + total/n: on a CPU the calls on rows and columns take longer than their arithmetic
    mean = torch.add(constant(eps, total), total, alpha=total.numel() / square.numel())
    return average.lerp_(mean, weight)


class FactoredMoments(Transform):
    """Divides by the root of a second moment that is the product of one average per row and one per column.

    With t = 1, 2, … and w = t^decay_rate, the weight of the newest sample:

        s = u² + eps₁
        two axes or more:  r ← r + w (mean of s over columns − r),   c ← c + w (mean of s over rows − c)
                           u ← u ⊙ (r / mean r)^-½ ⊙ c^-½            (last two axes; others are a batch)
        else:              v ← v + w (s − v),   u ← u v^-½

    State: r and c (``row``, ``col``), or v (``exp_avg_sq``).

    Args:
        decay_rate: exponent, at most 0.
        eps: the first is added to u²; the second is another transform's.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, algorithm 4.
    """

    allowed: ClassVar = {"decay_rate": "(-inf, 0]", "eps": ("[0, inf)", "[0, inf)")}

    def __init__(self, decay_rate: float = -0.8, eps: tuple[float, float] = (1e-30, 1e-3), *, name: str = "") -> None:
        super().__init__(name=name, decay_rate=decay_rate, eps=eps)

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return averages of zero."""
        return factored_state(param, (-2,), (-1,)) if param.dim() >= 2 else {"exp_avg_sq": zeros(param)}

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update over the root of its averaged square."""
        u, weight, eps = update.value(), batch.step ** batch.group["decay_rate"], batch.group["eps"][0]
        if len(batch.shape) >= 2:
            return factored_direction(u, batch.state, (-2,), (-1,), weight, eps)
        return Update(batch.state["exp_avg_sq"].lerp_((u * u).add_(eps), weight).rsqrt().mul_(u), free=True)
