"""Second moments by rows and columns, as Adafactor keeps them, and steps relative to the parameter's size."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from optim.engine.options import OR_NONE
from optim.engine.param_batch import (
    Group,
    ParamBatch,
    Scalar,
    State,
    TensorList,
    Update,
    at_least,
    at_most,
    constant,
    zero_per_axes,
    zeros,
)
from optim.engine.transform import Transform

Axes = tuple[int, ...]
FACTOR_PLAN = "factor_plan"
"""Key of the plan in the options that transforms see, if the optimizer makes plans."""


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

    decay_rate: Annotated[float, "(-inf, 0]"] = -0.8
    eps: Annotated[tuple[float, float], ("[0, inf)", "[0, inf)")] = (1e-30, 1e-3)
    foreach = True

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


class FactorPlan(NamedTuple):
    """How one parameter is factored and sliced; axes are counted from the end.

    Attributes:
        rows: axes that are rows of the factored second moment.
        cols: axes that are columns; without rows and columns the moment is kept per element.
        averaged: axes that the sizes of parameters and updates are averaged over, so that there is one size per slice
            of the others; None for one size per parameter.
        scaled: whether steps are relative to the parameter's size.
    """

    rows: Axes
    cols: Axes
    averaged: Axes | None
    scaled: bool


def slice_axes(batch: ParamBatch) -> Axes | None:
    """Return the axes that each slice extends over; None if the whole parameter is one slice."""
    plan: FactorPlan | None = batch.group.get(FACTOR_PLAN)
    return plan.averaged if plan else None


def slice_rms(x: Update | Tensor, batch: ParamBatch) -> Scalar:
    """Return the RMS of every slice of x, in its shape but 1 on the averaged axes; of the whole x without a plan."""
    axes = slice_axes(batch)
    if axes is None:
        return batch.rms_of(x) if isinstance(x, Update) else batch.rms(x)
    x = x.value() if isinstance(x, Update) else x
    if not axes:
        return x.abs()  # vector_norm with no axes would reduce over all of them
    return x.square().mean(axes, keepdim=True).sqrt_()


def times_slices(update: Update, factor: Scalar, batch: ParamBatch) -> Update:
    """Return an update multiplied by one number per slice, as `slice_rms` returns them."""
    if slice_axes(batch) is None:
        return update.times(factor)
    # `rows` and not `scale`: a batch reads scale as one number per parameter
    rows: Any = factor
    return update._replace(row_scale=rows if update.row_scale is None else update.row_scale * rows)


class ParameterScale(Transform):
    """Multiplies an update by the size of the parameter before the step, or of each slice if it has a `FactorPlan`.

        u ← min(max(rms(p), epsilon2), max_parameter_scale) · u

    Args:
        multiply_by_parameter_scale: False leaves the update unchanged. An optimizer whose parameters have plans may
            also take pairs of a regular expression and True or False.
        epsilon2: at least 0.
        max_parameter_scale: above 0; None for no limit.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 8.
    """

    multiply_by_parameter_scale: Any = True
    epsilon2: Annotated[float, "[0, inf)"] = 1e-3
    max_parameter_scale: Annotated[float | None, "(0, inf)" + OR_NONE] = None
    foreach = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update times the parameter's size."""
        group, plan = batch.group, batch.group.get(FACTOR_PLAN)
        # a plan has answered the regular expressions for this parameter; without one the option is the answer
        if not (plan.scaled if plan else group["multiply_by_parameter_scale"]):
            return update
        # the floor lets parameters that start at zero move at all
        size = at_least(slice_rms(batch.param, batch), group["epsilon2"])
        largest = group["max_parameter_scale"]
        return times_slices(update, size if largest is None else at_most(size, largest), batch)
