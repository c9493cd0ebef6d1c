"""The factors of `KronPreconditioner`: how they are applied, fitted and balanced; that class explains the symbols.

Legend: x a tensor (…, *shape) of d axes, with the leading axis of a stack or none; Q_k upper triangular (…, n, n), or
the diagonal (…, n) of a diagonal factor; X and Y (…, n, m) with the axis of Q_k first; Q and T upper triangular, zero
below the diagonal; r and c the rows and columns of a block.

torch has no products of triangular matrices: on a CPU they are made in blocks that skip the zeros. On an accelerator,
launches cost more than zeros, and each is one call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from optim.engine import group_step
from optim.transforms.matrices import addmm, matmul

MEMORY_SAVE_MODES = (None, "one_diag", "all_diag")
MAX_BLOCKS = 3  # with more, the calls cost more than the zeros
MIN_BLOCK = 128  # products of smaller blocks are slow


class Factor(NamedTuple):
    """One factor of a preconditioner: the axis it belongs to, counted from the end, and Q_k."""

    axis: int
    q: Tensor
    triangular: bool


def triangular_axes(
    shape: Sequence[int], max_size_triangular: int, min_ndim_triangular: int, memory_save_mode: str | None
) -> list[bool]:
    """Return which axes have a triangular factor; the others have a diagonal one."""
    if memory_save_mode == "all_diag" or len(shape) < min_ndim_triangular:
        return [False] * len(shape)
    allowed = [1 < size <= max_size_triangular for size in shape]
    if memory_save_mode == "one_diag":
        # the last of the largest
        largest = max(range(len(shape)), key=lambda axis: (shape[axis], axis))
        allowed[largest] = False
    return allowed


def unfolded(x: Tensor, axis: int, num_axes: int) -> Tensor:
    """Return x, (…, *shape), as (…, n, m), n along an axis counted from the end."""
    if num_axes == 1:
        return x.unsqueeze(-1)
    if num_axes == 2:
        return x if axis == -2 else x.mT  # views
    return x.movedim(axis, -num_axes).flatten(1 - num_axes)


def along(x: Tensor, factor: Factor, num_axes: int, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return x, (…, *shape), with ``change(Q_k, X)``, (…, n, m), in place of X."""
    changed = change(factor.q, unfolded(x, factor.axis, num_axes))
    if num_axes == 1:
        return changed.squeeze(-1)
    if num_axes == 2:
        return changed if factor.axis == -2 else changed.mT
    others = x.movedim(factor.axis, -num_axes).shape[1 - num_axes :]
    return changed.unflatten(-1, others).movedim(-num_axes, factor.axis)


def scaled(x: Tensor, factor: Factor, num_axes: int, by: Tensor) -> Tensor:
    """Return x, (…, *shape), times a vector (…, n) along the axis of a factor."""
    lead, size = by.shape[:-1], by.shape[-1]
    return x * by.reshape(*lead, *[1] * (num_axes + factor.axis), size, *[1] * (-1 - factor.axis))


def applied(x: Tensor, factors: Sequence[Factor]) -> Tensor:
    """Return x ×₁ Q₁ ×₂ Q₂ …, (…, *shape) like x."""
    return _along_all(x, factors, times)


def applied_transposed(x: Tensor, factors: Sequence[Factor]) -> Tensor:
    """Return x ×₁ Q₁ᵀ ×₂ Q₂ᵀ …, (…, *shape) like x."""
    return _along_all(x, factors, transposed_times)


def applied_products(x: Tensor, products: Sequence[Factor]) -> Tensor:
    """Return x ×₁ (Q₁ᵀ Q₁) ×₂ …, (…, *shape) like x, given these products in place of the Q_k."""
    return _along_all(x, products, torch.matmul)


def solved_transposed(x: Tensor, factors: Sequence[Factor]) -> Tensor:
    """Return x ×₁ Q₁⁻ᵀ ×₂ Q₂⁻ᵀ …, (…, *shape) like x."""
    return _along_all(x, factors, transposed_solve, Tensor.reciprocal)


def _along_all(
    x: Tensor,
    factors: Sequence[Factor],
    change: Callable[[Tensor, Tensor], Tensor],
    change_diagonal: Callable[[Tensor], Tensor] = lambda q: q,
) -> Tensor:
    # the last axis first: the result of a matrix then has rows that are contiguous
    for factor in reversed(factors):
        if factor.triangular:
            x = along(x, factor, len(factors), change)
        else:
            x = scaled(x, factor, len(factors), change_diagonal(factor.q))
    return x


def product_of(factor: Factor) -> Tensor:
    """Return Q_kᵀ Q_k."""
    return transposed_times(factor.q, factor.q) if factor.triangular else factor.q.square()


class Fit(NamedTuple):
    """The update of one block's factors: a gradient with noise, a probe, and how far the factors move."""

    gradient: Tensor
    probe: Tensor
    factors: list[Factor]
    precond_lr: float

    def compute(self) -> list[Tensor]:
        """Move the factors in place, and return them."""
        fit([self])
        return [factor.q for factor in self.factors]


def fit(fits: Sequence[Fit]) -> None:
    """Move every Q_k of some blocks, with one precond_lr, by one step, in place."""
    moves: tuple[list[Move], list[Move]] = [], []
    for one in fits:
        a, b = applied(one.gradient, one.factors), solved_transposed(one.probe, one.factors)
        for axis, q, triangular in one.factors:
            x, y = (unfolded(each, axis, len(one.factors)) for each in (a, b))
            moves[triangular].append(Move(q, x, y))
    for places in of_equal_size([move.q for move in moves[True]]):
        _move_triangular([moves[True][i] for i in places], fits[0].precond_lr)
    if moves[False]:
        _move_diagonal(moves[False], fits[0].precond_lr)


class Move(NamedTuple):
    """A factor Q_k that moves, and the unfolded A_(k) and B_(k) that it is moved by."""

    q: Tensor
    x: Tensor
    y: Tensor


def _move_triangular(moves: Sequence[Move], precond_lr: float) -> None:
    """Move matrices of one size; on a CPU, one or a stack."""
    if not group_step.launches_cost(moves[0].q.device):
        ((q, x, y),) = moves
        found = grams(x, y)
        subtract_product(q, found.difference, _rate(found, precond_lr))
        return
    stacks = [Move(*(x.view(-1, *x.shape[-2:]) if x.dim() == 2 else x for x in move)) for move in moves]
    found = grams_of_stacks([move.x for move in stacks], [move.y for move in stacks])
    q = torch.cat([move.q for move in stacks])
    q = torch.baddbmm(q, found.difference.triu_().mul_(_rate(found, precond_lr)), q, alpha=-1)
    torch._foreach_copy_([move.q for move in stacks], q.split([len(move.q) for move in stacks]))


def _rate(found: Grams, precond_lr: float) -> Tensor:
    # without gradients the bound is zero, and Q would become NaN instead of staying
    bound = norm_bound(found).clamp_(min=torch.finfo(found.total.dtype).tiny)
    return (precond_lr / bound)[..., None, None]


def _move_diagonal(moves: Sequence[Move], precond_lr: float) -> None:
    """Move vectors of any sizes."""
    qs, xs, ys = (list(column) for column in zip(*moves, strict=True))
    first, second = ([square.sum(-1) for square in torch._foreach_mul(zs, zs)] for zs in (xs, ys))
    # the norm of a diagonal S is its largest element, and no bound is needed
    rates = [total.amax(-1, keepdim=True) for total in torch._foreach_add(first, second)]
    torch._foreach_clamp_min_(rates, torch.finfo(rates[0].dtype).tiny)
    torch._foreach_reciprocal_(rates)
    torch._foreach_sub_(first, second)
    torch._foreach_mul_(first, qs)
    for q, change, rate in zip(qs, first, rates, strict=True):
        q.addcmul_(change, rate, value=-precond_lr)


def norm_bound(found: Grams) -> Tensor:
    """Return a lower bound (…) of the spectral norm of S = X Xᵀ + Y Yᵀ.

    ‖S y‖  with y = S s/‖S s‖, and s the longest column of S
    """
    place = found.column_squares.argmax(-1, keepdim=True)
    one = torch.zeros_like(found.column_squares).scatter_(-1, place, 1)
    image = found.total_times(found.total_times(one))
    # clamp_: of S = 0 the image is zero, and so must be the bound
    image = image / torch.linalg.vector_norm(image, dim=-1, keepdim=True).clamp_(min=torch.finfo(image.dtype).tiny)
    return torch.linalg.vector_norm(found.total_times(image), dim=-1).mul_(found.largest)


def balance(factors: Sequence[Factor]) -> None:
    """Scale the Q_k such that their largest elements are equal; their Kronecker product stays the same."""
    lead = factors[0].q.dim() - (2 if factors[0].triangular else 1)
    sizes = torch.stack([factor.q.flatten(lead).abs().amax(-1) for factor in factors])
    # in logarithms: the product of the sizes could leave the range of float32
    scales = sizes.log().mean(0).exp() / sizes
    for (_, q, _), scale in zip(factors, scales, strict=True):
        q.mul_(scale.reshape(*scale.shape, *[1] * (q.dim() - lead)))


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
    places_of: dict[int, list[int]] = defaultdict(list)
    for place, x in enumerate(tensors):
        places_of[x.shape[-1] if group_step.launches_cost(x.device) else -place].append(place)
    return list(places_of.values())


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
    half, corner, rectangle = _line_parts(line, n)
    corner.copy_(q[..., :half, half:])
    # of an even n the last column is beyond the transposed triangle, and add_ needs zeros there
    rectangle[..., n - half :] = 0
    rectangle[..., : n - half].copy_(q[..., half:, half:].mT)
    rectangle[..., :half, 1:].add_(q[..., :half, :half])


def unpacked(line: Tensor, n: int) -> Tensor:
    """Return the upper triangular matrix (…, n, n) of a line (…, n (n + 1)/2)."""
    q = line.new_zeros(*line.shape[:-1], n, n)
    half, corner, rectangle = _line_parts(line, n)
    q[..., :half, half:] = corner
    q[..., half:, half:] = rectangle[..., : n - half].tril().mT
    q[..., :half, :half] = rectangle[..., :half, 1:].triu()
    return q


def _line_parts(line: Tensor, n: int) -> tuple[int, Tensor, Tensor]:
    half = n // 2
    corner, rectangle = line.split((half * (n - half), (n - half) * (half + 1)), -1)
    return half, corner.unflatten(-1, (half, n - half)), rectangle.unflatten(-1, (n - half, half + 1))
