"""Products of upper triangular matrices in blocks that skip the zeros, and their storage without them.

torch has no such products. On an accelerator, launches cost more than zeros: there each is one call. Legend: Q and T
upper triangular (…, n, n), zero below the diagonal; X (…, n, m); the leading axis of a stack, or none; r and c the rows
and columns of a block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from optim.engine import group_step
from optim.transforms.matrices import addmm, matmul

MAX_BLOCKS = 3  # with more, the calls cost more than the zeros
MIN_BLOCK = 128  # products of smaller blocks are slow


def blocks(n: int, max_blocks: int = MAX_BLOCKS) -> list[slice]:
    """Return slices of about equal length that make up n."""
    count = min(max_blocks, -(-n // MIN_BLOCK))
    return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]


def times(q: Tensor, x: Tensor) -> Tensor:
    """Return Q X, (…, n, m)."""
    if group_step.launches_cost(x.device):
        return q @ x
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for r in blocks(q.shape[-1]):
        out[..., r, :] = matmul(q[..., r, r.start :], x[..., r.start :, :])
    return out


def transposed_times(q: Tensor, x: Tensor) -> Tensor:
    """Return Qᵀ X, (…, n, m)."""
    if group_step.launches_cost(x.device):
        return q.mT @ x
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for r in blocks(q.shape[-1]):
        out[..., r, :] = matmul(q[..., : r.stop, r].mT, x[..., : r.stop, :])
    return out


def transposed_solve(q: Tensor, x: Tensor) -> Tensor:
    """Return Q⁻ᵀ X, (…, n, m)."""
    if group_step.launches_cost(x.device):
        return torch.linalg.solve_triangular(q.mT, x, upper=False)
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
    """Products of two matrices with themselves.

    Attributes:
        difference: X Xᵀ − Y Yᵀ, (…, n, n); only the upper triangle counts.
        total: (X Xᵀ + Y Yᵀ)/largest, (…, n, n); zero below the diagonal unless ``whole``.
        largest: the largest element of X Xᵀ + Y Yᵀ, (…); it is on the diagonal.
        column_squares: the squared lengths of the columns of the whole ``total``, (…, n).
        whole: see ``total``.
    """

    difference: Tensor
    total: Tensor
    largest: Tensor
    column_squares: Tensor
    whole: bool

    def total_times(self, x: Tensor) -> Tensor:
        """Return the whole ``total`` times a vector (…, n)."""
        column = x.unsqueeze(-1)
        if self.whole:
            return (self.total @ column).squeeze(-1)
        product = self.total @ column + self.total.mT @ column
        return product.squeeze(-1) - self.total.diagonal(dim1=-2, dim2=-1) * x


def grams(x: Tensor, y: Tensor) -> Grams:
    """Return all that a fit needs of X Xᵀ and Y Yᵀ, (…, n, n), block by block, while a block is in the cache."""
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
    return Grams(difference, total, largest, squares, whole=False)


def grams_of_stacks(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Grams:
    """Return the same of all matrices of several stacks (N, n, m), whose m differ, one after the other."""
    counts, n = [len(x) for x in xs], xs[0].shape[-2]
    first, second = (xs[0].new_empty(sum(counts), n, n) for _ in range(2))
    for zs, products in ((xs, first), (ys, second)):
        for z, product in zip(zs, products.split(counts), strict=True):
            torch.bmm(z, z.mT, out=product)
    total = first + second
    largest = total.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_(min=torch.finfo(total.dtype).tiny)
    total.div_(largest[:, None, None])
    return Grams(first.sub_(second), total, largest, total.square().sum(-2), whole=True)


def subtract_product(q: Tensor, t: Tensor, scale: Tensor) -> None:
    """Q ← Q − scale · T Q, with a scale () or (…, 1, 1); blocks of T below the diagonal may hold anything."""
    parts = blocks(q.shape[-1])
    # rows from the top: a row needs the old values of itself and of those below
    for place, r in enumerate(parts):
        for c in parts[place:]:
            within = slice(r.start, c.stop)
            product = matmul(t[..., r, within], q[..., within, c])
            q[..., r, c].addcmul_(product, scale, value=-1)


def of_equal_size(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the places of tensors (…, n) that one call treats together: of equal n, or on a CPU each alone."""
    together: dict[int, list[int]] = defaultdict(list)
    for place, x in enumerate(tensors):
        together[x.shape[-1] if group_step.launches_cost(x.device) else -place].append(place)
    return list(together.values())


def pack_all(qs: Sequence[Tensor], lines: Sequence[Tensor]) -> None:
    """`pack` each matrix (…, n, n) into its line (…, n (n + 1)/2); n may differ."""
    for places in of_equal_size(qs):
        if len(places) == 1:
            pack(qs[places[0]], lines[places[0]])
            continue
        stored = [lines[i].view(-1, lines[i].shape[-1]) for i in places]
        packed = stored[0].new_empty(sum(map(len, stored)), stored[0].shape[-1])
        pack(torch.cat([qs[i].view(-1, *qs[i].shape[-2:]) for i in places]), packed)
        torch._foreach_copy_(stored, packed.split([len(line) for line in stored]))


def unpacked_all(lines: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """Return each line (…, n (n + 1)/2) `unpacked` to (…, n, n), with its n of ``sizes``."""
    matrices = list(lines)
    for places in of_equal_size(lines):
        if len(places) == 1:
            matrices[places[0]] = unpacked(lines[places[0]], sizes[places[0]])
            continue
        stored = [lines[i].view(-1, lines[i].shape[-1]) for i in places]
        whole = unpacked(torch.cat(stored), sizes[places[0]])
        for i, q in zip(places, whole.split([len(line) for line in stored]), strict=True):
            matrices[i] = q.view(*lines[i].shape[:-1], *q.shape[1:])
    return matrices


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
    # of an even n the last column is beyond the transposed triangle, and add_ needs zeros there
    rectangle[..., n - half :] = 0
    rectangle[..., : n - half].copy_(q[..., half:, half:].mT)
    rectangle[..., :half, 1:].add_(q[..., :half, :half])


def unpacked(line: Tensor, n: int) -> Tensor:
    """Return the upper triangular matrix (…, n, n) of a line (…, n (n + 1)/2)."""
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
