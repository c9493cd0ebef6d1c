"""Sizes and factors of a parameter's slices: one number for each place on the axes that a plan leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from optim.batch import Batch, Scalar, Update
from optim.factor_plan import planned


def slice_rms(x: Tensor, batch: Batch) -> Scalar:
    """Return the RMS of every slice of x, which broadcasts against it."""
    axes = planned(batch.kind).averaged
    if axes is None:
        return batch.rms(x)
    if not axes:
        return x.abs()
    numel = torch.Size(batch.shape[axis] for axis in axes).numel()
    return torch.linalg.vector_norm(x, dim=axes, keepdim=True).div_(max(1, numel) ** 0.5)


def times_slices(update: Update, factor: Scalar, batch: Batch) -> Update:
    """Return an update multiplied by one number per slice, as `slice_rms` returns them."""
    if planned(batch.kind).averaged is None or not isinstance(factor, Tensor):
        return update.times(factor)
    return update._replace(rows=factor if update.rows is None else update.rows * factor)
