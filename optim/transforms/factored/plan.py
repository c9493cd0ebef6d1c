"""What an optimizer with rules per parameter decided about one, and the sizes of the slices that follow from it."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from optim.engine.param_batch import ParamBatch, Scalar, Update

Axes = tuple[int, ...]
FACTOR_PLAN = "factor_plan"
"""Key of the plan in the options that transforms see, if the optimizer makes plans."""


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
