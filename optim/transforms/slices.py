"""Sizes of a parameter's slices: one number for each position on the axes that a `FactorPlan` does not average over."""

from __future__ import annotations

import torch
from torch import Tensor

from optim.engine.batch import ParamBatch, Scalar, Update
from optim.transforms.factored import FactorPlan


def slice_axes(batch: ParamBatch) -> tuple[int, ...] | None:
    """Return the axes that each slice extends over; None if the whole parameter is one slice."""
    plan = batch.stacking_key
    return plan.averaged if isinstance(plan, FactorPlan) else None


def slice_rms(x: Update | Tensor, batch: ParamBatch) -> Scalar:
    """Return the RMS of every slice of x, which broadcasts against it; of the whole x without a plan."""
    axes = slice_axes(batch)
    if axes is None:
        return batch.rms_of(x) if isinstance(x, Update) else batch.rms(x)
    x = x.value() if isinstance(x, Update) else x
    if not axes:
        return x.abs()  # vector_norm with no axes would reduce over all of them
    numel = torch.Size(batch.shape[axis] for axis in axes).numel()
    return torch.linalg.vector_norm(x, dim=axes, keepdim=True).div_(max(1, numel) ** 0.5)


def times_slices(update: Update, factor: Scalar, batch: ParamBatch) -> Update:
    """Return an update multiplied by one number per slice, as `slice_rms` returns them."""
    if slice_axes(batch) is None or not isinstance(factor, Tensor):
        return update.times(factor)
    # `rows` and not `scale`: a batch reads scale as one number per parameter
    return update._replace(rows=factor if update.rows is None else update.rows * factor)
