"""Products of a tensor with a matrix along one axis, alone and stacked."""

from __future__ import annotations

from torch import Tensor


def unfolded(x: Tensor, axis: int, stacked: bool) -> Tensor:
    """Return x as a matrix whose columns run along an axis: (…, M, n), a stack of them where x is one.

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
        matrix: (n, n) or (n); with a first axis of N where x is a stack.
        axis: counted from the end.
        stacked: whether there is a first axis of N.
    """
    if matrix.dim() - stacked == 1:
        return x * along(matrix, x, axis, stacked)
    if axis == -1 and x.dim() - stacked >= 2:
        return x @ (matrix.reshape(len(x), *[1] * (x.dim() - 3), *matrix.shape[1:]) if stacked else matrix)
    if axis == -2 and x.dim() - stacked == 2:
        return matrix @ x
    product = unfolded(x, axis, stacked) @ matrix
    return product.reshape(x.movedim(axis, -1).shape).movedim(-1, axis)


def along(vector: Tensor, x: Tensor, axis: int, stacked: bool) -> Tensor:
    """Shape a vector (n) so that it broadcasts along an axis of x."""
    shape = [1] * x.dim()
    shape[axis] = x.shape[axis]
    if stacked:
        shape[0] = x.shape[0]
    return vector.reshape(shape)
