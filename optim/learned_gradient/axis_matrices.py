"""The matrices of `LearnedAxes`: how they are kept, applied and learned. `LearnedAxes` explains the symbols."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from optim.engine.param_batch import Group, ParamBatch, choose
from optim.learned_gradient.mode_products import inner, multiplied, symmetric_product, unfolded
from optim.transforms.matrices import matmul

META_NORMS = ("frobenius", "rms", "rms_squared")
TINY = 1e-20
# The matrices move by a fixed length along what cancellation leaves of a derivative. That magnifies rounding most where
# there are few elements, and there float64 costs nothing.
FLOAT64_BELOW_NUMEL = 4096


def learned_axes(batch: ParamBatch) -> list[int]:
    """Return the axes that have a matrix, counted from the end."""
    return [axis for axis in range(-len(batch.shape), 0) if _key("matrix", axis, batch) in batch.state]


def matrix_of(axis: int, batch: ParamBatch) -> Tensor:
    """Return M_k, or the vector of its diagonal."""
    matrix: Tensor = batch.state[_key("matrix", axis, batch)]
    return matrix


def covariance_of(axis: int, batch: ParamBatch) -> Tensor:
    """Return C_k, or the vector of its diagonal."""
    covariance: Tensor = batch.state[_key("covariance", axis, batch)]
    return covariance


def _key(statistic: str, axis: int, batch: ParamBatch) -> str:
    return f"{statistic}_{axis + len(batch.shape)}"


def _is_full(matrix: Tensor, batch: ParamBatch) -> bool:
    return matrix.dim() - batch.stacked == 2


def transformed(x: Tensor, axes: list[int], batch: ParamBatch, but: int | None = None) -> Tensor:
    """Return x, (*shape) or (N, *shape), multiplied by the matrices of all axes but one."""
    for axis in axes:
        if axis != but:
            x = multiplied(x, matrix_of(axis, batch), axis, batch.stacked)
    return x


def learn(grad: Tensor, axes: list[int], batch: ParamBatch, due: bool | Tensor = True) -> None:
    """Update the covariances with a gradient, (*shape) or (N, *shape), and improve the matrices by it, if it is due."""
    for axis in axes:
        _cover(grad, axis, batch, due)
    first = not isinstance(batch.step, Tensor) and batch.step == 1
    if first or not axes:
        return  # no average, and so no previous step to judge: h would hold NaN
    for axis, new in _improved(axes, precise(batch, grad)).items():
        old = matrix_of(axis, batch)
        # with a mean diagonal of 1, only elements that are not finite make a sum that is not
        takes = new.sum((-2, -1) if _is_full(new, batch) else -1, keepdim=True).isfinite()
        takes = takes & due if isinstance(due, Tensor) else takes
        torch.where(takes, new.to(old.dtype), old, out=old)


def precise(batch: ParamBatch, grad: Tensor) -> ParamBatch:
    """Return the batch with this gradient, (*shape) or (N, *shape), in float64 if that costs nothing."""
    if batch.numel >= FLOAT64_BELOW_NUMEL or grad.device.type == "mps":  # which has no float64
        return replace(batch, grad=grad)
    state = {key: value.double() for key, value in batch.state.items() if isinstance(value, Tensor)}
    return replace(batch, grad=grad.double(), state=state)


def _improved(axes: list[int], batch: ParamBatch) -> dict[int, Tensor]:
    """Return the new M_k by axis; empty if it is known that there is no derivative."""
    rests = {axis: transformed(batch.state["exp_avg"], axes, batch, but=axis) for axis in axes}
    # d from one of the rests by a single product, the cheapest
    shortest = min(axes, key=lambda axis: batch.shape[axis])
    direction = multiplied(rests[shortest], matrix_of(shortest, batch), shortest, batch.stacked)
    slope = meta_gradient(batch.grad, direction, axes, batch)
    if slope is None:
        return {}
    return {axis: _moved(axis, slope, rests[axis], direction, batch) for axis in axes}


def _cover(grad: Tensor, axis: int, batch: ParamBatch, due: bool | Tensor) -> None:
    """C_k ← β₂ C_k + G_(k) G_(k)ᵀ, if it is due."""
    covariance = covariance_of(axis, batch)
    columns = unfolded(grad, axis, batch.stacked)
    product = symmetric_product(columns.mT, columns.mT) if _is_full(covariance, batch) else columns.square().sum(-2)
    covariance.copy_(choose(due, product.add_(covariance, alpha=batch.group["betas"][1]), covariance))


def meta_gradient(grad: Tensor, direction: Tensor, axes: list[int], batch: ParamBatch) -> Tensor | None:
    """Return h, the derivative of J by d, (*shape) or (N, *shape) like g and d; None if it is known that there is none.

    If that cannot be read without waiting for the device, h holds NaN instead.
    """
    covered = direction
    for axis in axes:
        covariance = covariance_of(axis, batch)
        full = _is_full(covariance, batch)
        diagonal = covariance.diagonal(dim1=-2, dim2=-1) if full else covariance
        # over its mean: C is of the size of g², and a product over several axes could leave the range of float32
        mean = diagonal.mean(-1, keepdim=True).add_(TINY)
        covered = multiplied(covered, covariance / (mean.unsqueeze(-1) if full else mean), axis, batch.stacked)
    square = batch.dot(direction, covered) / batch.numel
    if isinstance(square, Tensor):
        square = torch.where((square > 0) & square.isfinite(), square, torch.nan)
    elif not 0 < square < float("inf"):
        return None
    root = square**0.5
    along_direction = batch.dot(grad, direction) / (square * root * batch.numel)
    return grad / root - covered * along_direction


def _moved(axis: int, slope: Tensor, rest: Tensor, direction: Tensor, batch: ParamBatch) -> Tensor:
    """Return M_k after one step along D_k, given h, ḡ ×_{j≠k} M_j and d."""
    matrix, mix = matrix_of(axis, batch), batch.group["identity_mix"]
    full = _is_full(matrix, batch)
    if full:
        step = _scaled(_full_step(axis, slope, rest, direction, batch), (-2, -1), batch.group)
        step.diagonal(dim1=-2, dim2=-1).add_(1)
        new = symmetric_product(matmul(step, matrix), step)
        diagonal = new.diagonal(dim1=-2, dim2=-1)
        # J does not depend on the size of M_k: without this line it would drift
        new.div_(diagonal.mean(-1)[..., None, None])
    else:
        columns = unfolded(slope, axis, batch.stacked), unfolded(rest, axis, batch.stacked)
        step = _scaled((columns[0] * columns[1]).sum(-2).mul_(matrix), (-1,), batch.group)
        new = step.add_(1).square_().mul_(matrix)
        diagonal = new.div_(new.mean(-1, keepdim=True))
    # diagonal is a view of new, so both lines write to one tensor
    if mix:
        new.mul_(1 - mix)
        diagonal.add_(mix)
    return new


def _full_step(axis: int, slope: Tensor, rest: Tensor, direction: Tensor, batch: ParamBatch) -> Tensor:
    """Return S_k = ½ (D_k + D_kᵀ) M_k."""
    matrix, stacked = matrix_of(axis, batch), batch.stacked
    if batch.shape[axis] ** 2 > 2 * batch.numel:
        # M_k times two thin factors costs less than times D_k
        half = slope / 2
        return inner(half, direction, axis, stacked) + inner(
            rest, multiplied(half, matrix, axis, stacked), axis, stacked
        )
    # lerp with 0.5: (D + Dᵀ)/2 in one pass
    derivative = inner(slope, rest, axis, stacked)
    return matmul(torch.lerp(derivative, derivative.mT, 0.5), matrix)


def _scaled(step: Tensor, inner_axes: tuple[int, ...], group: Group) -> Tensor:
    """Scale a step to the length that the matrices move by, in place."""
    norm, speed = group["meta_norm"], group["lr"] * group["meta_lr_scale"]
    length = torch.linalg.vector_norm(step, dim=inner_axes, keepdim=True)
    if norm != "frobenius":
        length /= step.shape[-1] ** (len(inner_axes) / 2)
    return step.mul_((speed * speed if norm == "rms_squared" else speed) / length.add_(TINY))
