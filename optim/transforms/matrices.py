"""What optimizers with one matrix per axis share: axes merged and split, and products of matrices.

Legend: N parameters in a stack, (d₁, …, dₖ) the merged shape, such as (O, I·H·W) of a convolution kernel (O, I, H, W).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

# products in float32 on a CPU are by oneDNN where it is faster than what torch's functions use
ONEDNN_FROM = 2**20
"""Multiplications from which on oneDNN is faster than MKL, at least on AMD's processors: at 256³ twice as fast."""
SMALLEST = 32
"""Rows, columns and sums below which it is not."""


class MergedDims(NamedTuple):
    """How a parameter is cut into blocks that have one matrix per axis.

    Attributes:
        shape: (d₁, …, dₖ), without axes of size 1; () for a single element.
        blocks: one tuple of k slices per block; a single block of whole axes if nothing is split.
    """

    shape: tuple[int, ...]
    blocks: tuple[tuple[slice, ...], ...]

    def merge(self, x: Tensor, *, stacked: bool = False) -> Tensor:
        """Return (*shape) or (N, *shape) as (d₁, …, dₖ) or (N, d₁, …, dₖ): a view unless the memory is permuted."""
        return x.reshape(*x.shape[:1], *self.shape) if stacked else x.reshape(self.shape)

    def split(self, x: Tensor) -> list[Tensor]:
        """Return the blocks of a merged tensor, (d₁, …, dₖ) or (N, d₁, …, dₖ), as views."""
        places: list[tuple[Any, ...]] = [(..., *block) for block in self.blocks]
        return [x[place] for place in places] if len(places) > 1 else [x]

    def join(self, blocks: Sequence[Tensor]) -> Tensor:
        """Return the merged tensor, (d₁, …, dₖ) or (N, d₁, …, dₖ), of these blocks; a copy if there are several."""
        if len(blocks) == 1:
            return blocks[0]
        lead = blocks[0].shape[: blocks[0].dim() - len(self.shape)]
        whole = blocks[0].new_empty(*lead, *self.shape)
        for place, block in zip(self.split(whole), blocks, strict=True):
            place.copy_(block)
        return whole

    def block_shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of every block."""
        return [tuple(part.stop - part.start for part in block) for block in self.blocks]


@lru_cache(maxsize=4096)
def merged_dims(shape: tuple[int, ...], max_dim: int, *, merge: bool = True, split: bool = False) -> MergedDims:
    """Return how to merge and to split the axes of a parameter.

    Axes of size 1 are dropped. ``merge`` keeps the first of the others, so that outputs stay apart from inputs, and
    joins the later ones from the last on, as long as their product is at most ``max_dim``. ``split`` then cuts every
    axis of more than ``max_dim`` into the fewest blocks that are not longer, whose sizes differ by 1 at most.

    Args:
        shape: of the parameter.
        max_dim: at least 1.
        merge: whether to join axes.
        split: whether to cut axes; otherwise longer ones stay whole.

    Reference:
        Vyas et al. 2024, "SOAP", arXiv:2409.11321: merge_dims of its code, github.com/nikhilvyas/SOAP.
        Differs: the first axis is never merged, or small matrices would become vectors; there is no split there.
    """
    sizes = [size for size in shape if size != 1]
    merged = _joined(sizes, max_dim) if merge else sizes
    cuts = [_slices(size, max_dim if split else size) for size in merged]
    return MergedDims(tuple(merged), tuple(product(*cuts)))


def _joined(sizes: list[int], max_dim: int) -> list[int]:
    joined: list[int] = []
    for size in reversed(sizes[1:]):
        if joined and joined[0] * size <= max_dim:
            joined[0] *= size
        else:
            joined.insert(0, size)
    return sizes[:1] + joined


def _slices(size: int, max_size: int) -> list[slice]:
    num_blocks = max(1, -(-size // max(1, max_size)))
    edges = [i * size // num_blocks for i in range(num_blocks + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


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
