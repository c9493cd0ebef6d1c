"""Products of matrices in float32 on a CPU by oneDNN, where it is faster than what torch's functions use."""

from __future__ import annotations

import torch
from torch import Tensor

ONEDNN_FROM = 2**20
"""Multiplications from which on oneDNN is faster than MKL, at least on AMD's processors: at 256³ twice as fast."""
SMALLEST = 32
"""Rows, columns and sums below which it is not."""


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, (..., R, C), in new memory of either order."""
    if not _suits_onednn(left, right):
        return left @ right
    if left.mT.is_contiguous() and right.mT.is_contiguous():
        return _by_onednn(right.mT, left.mT).mT  # faster with rows that are contiguous on the left
    return _by_onednn(left, right)


def addmm(base: Tensor, left: Tensor, right: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """Return β base + α left @ right for matrices (R, C), or stacks (N, R, C) of them."""
    if _suits_onednn(left, right):
        product = matmul(left, right)
        return (product if alpha == 1 else product.mul_(alpha)).add_(base, alpha=beta)
    plus = torch.addmm if left.dim() == 2 else torch.baddbmm
    return plus(base, left, right, beta=beta, alpha=alpha)


def _suits_onednn(left: Tensor, right: Tensor) -> bool:
    """Return whether a product is best made by oneDNN, and can be."""
    if left.dim() != 2 or right.dim() != 2 or left.dtype != torch.float32 or left.device.type != "cpu":
        return False
    size, (rows, columns) = left.shape[-1], (left.shape[0], right.shape[-1])
    return (
        rows * columns * size >= ONEDNN_FROM
        and min(rows, columns, size) >= SMALLEST
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _by_onednn(left: Tensor, right: Tensor) -> Tensor:
    # oneDNN takes other strides too, but hundreds of times as long for some
    if left.stride(-1) != 1 and not left.mT.is_contiguous():
        left = left.contiguous()
    if not right.is_contiguous() and not right.mT.is_contiguous():
        right = right.contiguous()
    # torch's public functions give float32 matrices to MKL; this one is what compiled graphs call for linear layers
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.mT, None, "none", [], "")
    return product
