"""Products of tensors and matrices along one axis, alone and stacked."""

from __future__ import annotations

import torch
from torch import Tensor

from optim.transforms.matrices import matmul

BLOCK = 256  # rows up to which one call is faster than several that skip work


def unfolded(x: Tensor, axis: int, stacked: bool) -> Tensor:
    """Return x as a matrix whose columns run along an axis: (…, M, n); a stack of matrices for a stack.

    Args:
        x: (*shape) or (N, *shape).
        axis: counted from the end.
        stacked: whether there is a first axis of N.
    """
    lead = x.shape[:1] if stacked else ()
    moved = x.movedim(axis, -1)
    return moved.reshape(*lead, -1, x.shape[axis])


def multiplied(x: Tensor, matrix: Tensor, axis: int, stacked: bool) -> Tensor:
    """Return x multiplied along an axis by a symmetric matrix (n, n), or by a diagonal one, given as (n).

    Args:
        x: (*shape) or (N, *shape).
        matrix: (n, n) or (n); with a first axis of N if x is a stack.
        axis: counted from the end.
        stacked: whether there is a first axis of N.
    """
    if matrix.dim() - stacked == 1:
        return x * along(matrix, x, axis, stacked)
    # the last two axes need no movedim, whose reshape would copy x; M is symmetric, so either side is right
    if axis == -1 and x.dim() - stacked >= 2:
        return matmul(x, matrix.reshape(len(x), *[1] * (x.dim() - 3), *matrix.shape[1:]) if stacked else matrix)
    if axis == -2 and x.dim() - stacked == 2:
        return matmul(matrix, x)
    product = matmul(unfolded(x, axis, stacked), matrix)
    return product.reshape(x.movedim(axis, -1).shape).movedim(-1, axis)


def along(vector: Tensor, x: Tensor, axis: int, stacked: bool) -> Tensor:
    """Shape a vector (n), or (N, n) of a stack, so that it broadcasts along an axis of x."""
    shape = [1] * x.dim()
    shape[axis] = x.shape[axis]
    if stacked:
        shape[0] = x.shape[0]
    return vector.reshape(shape)


def inner(first: Tensor, second: Tensor, axis: int, stacked: bool) -> Tensor:
    """Return the inner products of all pairs of slices along an axis, (n, n), or (N, n, n) of stacks."""
    return matmul(unfolded(first, axis, stacked).mT, unfolded(second, axis, stacked))


def symmetric_product(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of the first matrix and the second transposed; the caller knows that it is symmetric.

    The part above the diagonal is mirrored, not multiplied: for large matrices that saves up to three eighths.

    Args:
        first: (…, n, m).
        second: (…, n, m).
    """
    product = first.new_empty(*first.shape[:-1], first.shape[-2])
    _fill_symmetric(product, first, second)
    return product


def _fill_symmetric(product: Tensor, first: Tensor, second: Tensor) -> None:
    size = product.shape[-1]
    if size <= BLOCK:
        block = matmul(first, second.mT)
        # matmul rounds (i, j) and (j, i) differently: without this the matrices would lose their symmetry over time
        torch.add(block, block.mT, out=product).mul_(0.5)
        return
    half = size // 2
    for part in (slice(half), slice(half, size)):
        _fill_symmetric(product[..., part, part], first[..., part, :], second[..., part, :])
    # halves, not single blocks: matmul is efficient on large parts only
    below = matmul(first[..., half:, :], second[..., :half, :].mT)
    product[..., half:, :half] = below
    product[..., :half, half:] = below.mT
