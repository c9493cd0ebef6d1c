"""Products of upper triangular matrices in blocks that skip the zeros, and their storage without them.

torch has no such products. Legend: Q and T upper triangular (…, n, n), zero below the diagonal; X (…, n, m); the
leading axis of a stack, or none; r and c the rows and columns of a block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from optim.engine.matmul import addmm, matmul

MAX_BLOCKS = 3  # with more, the calls cost more than the zeros
MIN_BLOCK = 128  # products of smaller blocks are slow


def blocks(n: int, max_blocks: int = MAX_BLOCKS) -> list[slice]:
    """Return slices of about equal length that make up n."""
    count = min(max_blocks, -(-n // MIN_BLOCK))
    return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]


def times(q: Tensor, x: Tensor) -> Tensor:
    """Return Q X."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for r in blocks(q.shape[-1]):
        out[..., r, :] = matmul(q[..., r, r.start :], x[..., r.start :, :])
    return out


def transposed_times(q: Tensor, x: Tensor) -> Tensor:
    """Return Qᵀ X."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for r in blocks(q.shape[-1]):
        out[..., r, :] = matmul(q[..., : r.stop, r].mT, x[..., : r.stop, :])
    return out


def transposed_solve(q: Tensor, x: Tensor) -> Tensor:
    """Return Q⁻ᵀ X."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = q.shape[-1]
    eye = torch.eye(min(n, MIN_BLOCK), dtype=q.dtype, device=q.device)
    for r in blocks(n, max_blocks=n):
        part = x[..., r, :]
        if r.start:
            part = addmm(part, q[..., : r.start, r].mT, out[..., : r.start, :], alpha=-1)
        # the inverse of a block, and a product: the solver itself is slower than both
        size = r.stop - r.start
        inverse = torch.linalg.solve_triangular(q[..., r, r], eye[:size, :size], upper=True)
        torch.matmul(inverse.mT, part, out=out[..., r, :])
    return out


class Grams(NamedTuple):
    """Products of two matrices with themselves, as upper triangles.

    Attributes:
        difference: X Xᵀ − Y Yᵀ, (…, n, n); blocks below the diagonal hold anything.
        total: (X Xᵀ + Y Yᵀ)/largest, (…, n, n), zero below the diagonal.
        largest: the largest element of X Xᵀ + Y Yᵀ, (…); it is on the diagonal.
        column_squares: the squared lengths of the columns of the whole ``total``, (…, n).
    """

    difference: Tensor
    total: Tensor
    largest: Tensor
    column_squares: Tensor


def grams(x: Tensor, y: Tensor) -> Grams:
    """Return all that a fit needs of X Xᵀ and Y Yᵀ, block by block, while a block is in the cache."""
    n = x.shape[-2]
    difference, total = x.new_empty(*x.shape[:-1], n), x.new_empty(*x.shape[:-1], n)
    diagonal = torch.linalg.vector_norm(x, dim=-1).square_() + torch.linalg.vector_norm(y, dim=-1).square_()
    largest = diagonal.amax(-1).clamp_(min=torch.finfo(x.dtype).tiny)
    squares = torch.zeros_like(diagonal)
    for r in blocks(n):
        right = slice(r.start, n)
        first, second = (matmul(z[..., r, :], z[..., right, :].mT) for z in (x, y))
        torch.sub(first, second, out=difference[..., r, right])
        # over the largest element, or squares could overflow
        first.add_(second).div_(largest[..., None, None])
        size = r.stop - r.start
        squared = torch.square(first)
        squares[..., right].add_(squared.sum(-2))
        squares[..., r].add_(squared[..., size:].sum(-1))
        difference[..., r, r].triu_()
        first[..., :size].triu_()
        total[..., r, right] = first
        total[..., r, : r.start] = 0
    return Grams(difference, total, largest, squares)


def subtract_product(q: Tensor, t: Tensor, scale: Tensor) -> None:
    """Q ← Q − scale · T Q, with a scale () or (…, 1, 1); blocks of T below the diagonal may hold anything."""
    parts = blocks(q.shape[-1])
    # rows from the top: a row needs the old values of itself and of those below
    for place, r in enumerate(parts):
        for c in parts[place:]:
            within = slice(r.start, c.stop)
            product = matmul(t[..., r, within], q[..., within, c])
            q[..., r, c].addcmul_(product, scale, value=-1)


def pack(q: Tensor, line: Tensor) -> None:
    """Store the upper triangle of Q as a line, (…, n (n + 1)/2); `unpacked` is the inverse.

    The triangle of the last half of the rows is transposed and fits below that of the first half:

        rows 0 … h − 1, columns h … n − 1 of Q;   then row i = 0 … n − h − 1:   Q[h + j, h + i] for j = 0 … i,
                                                                               Q[i, j] for j = i … h − 1;   h = ⌊n/2⌋

    Reference:
        Gustavson et al. 2010, "Rectangular Full Packed Format for Cholesky's Algorithm", arXiv:0901.1696.
    """
    n = q.shape[-1]
    half, corner, rectangle = _parts(line, n)
    corner.copy_(q[..., :half, half:])
    rectangle[..., n - half :] = 0
    rectangle[..., : n - half].copy_(q[..., half:, half:].mT)
    rectangle[..., :half, 1:].add_(q[..., :half, :half])


def unpacked(line: Tensor, n: int) -> Tensor:
    """Return the upper triangular matrix (…, n, n) of a line."""
    q = line.new_zeros(*line.shape[:-1], n, n)
    half, corner, rectangle = _parts(line, n)
    q[..., :half, half:] = corner
    q[..., half:, half:] = rectangle[..., : n - half].tril().mT
    q[..., :half, :half] = rectangle[..., :half, 1:].triu()
    return q


def _parts(line: Tensor, n: int) -> tuple[int, Tensor, Tensor]:
    half = n // 2
    corner, rectangle = line.split((half * (n - half), (n - half) * (half + 1)), -1)
    return half, corner.unflatten(-1, (half, n - half)), rectangle.unflatten(-1, (n - half, half + 1))
