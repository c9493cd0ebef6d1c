"""The factors of `KronPreconditioner`: how they are applied, fitted and balanced; that class explains the symbols.

Legend: x a tensor (…, *shape) of d axes, with the leading axis of a stack or none; Q_k upper triangular (…, n, n), or
the diagonal (…, n) of a diagonal factor; X and Y (…, n, m) with the axis of Q_k first; Q and T upper triangular, zero
below the diagonal; r and c the rows and columns of a block.

torch has no products of triangular matrices: on a CPU they are made in blocks that skip the zeros. On an accelerator,
launches cost more than zeros, and each is one call. Either way a call takes all matrices of a stack.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optim.engine import group_step

MEMORY_SAVE_MODES = (None, "one_diag", "all_diag")
MIN_BLOCK = 256  # products of smaller blocks are slow
COLUMNS = 16  # see `norm_bound`
MAX_BLOCKS = 8  # with more, the calls cost more than the zeros


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


def diagonal_along(factor: Factor, num_axes: int) -> Tensor:
    """Return the vector (…, n) of a diagonal factor such that it broadcasts against x."""
    lead, size = factor.q.shape[:-1], factor.q.shape[-1]
    return factor.q.reshape(*lead, *[1] * (num_axes + factor.axis), size, *[1] * (-1 - factor.axis))


def applied(xs: Sequence[Tensor], factors: Sequence[Sequence[Factor]]) -> list[Tensor]:
    """Return x ×₁ Q₁ ×₂ Q₂ …, (…, *shape) like x, of every x."""
    return _along_all(xs, factors, times)


def applied_transposed(xs: Sequence[Tensor], factors: Sequence[Sequence[Factor]]) -> list[Tensor]:
    """Return x ×₁ Q₁ᵀ ×₂ Q₂ᵀ …, (…, *shape) like x, of every x."""
    return _along_all(xs, factors, transposed_times)


def applied_products(xs: Sequence[Tensor], products: Sequence[Sequence[Factor]]) -> list[Tensor]:
    """Return x ×₁ (Q₁ᵀ Q₁) ×₂ …, (…, *shape) like x, of every x, given these products in place of the Q_k."""
    return _along_all(xs, products, product)


def solved_transposed(xs: Sequence[Tensor], factors: Sequence[Sequence[Factor]]) -> list[Tensor]:
    """Return x ×₁ Q₁⁻ᵀ ×₂ Q₂⁻ᵀ …, (…, *shape) like x, of every x."""
    return _along_all(xs, factors, transposed_solve, torch._foreach_div)


def _along_all(
    xs: Sequence[Tensor],
    factors: Sequence[Sequence[Factor]],
    change: Callable[[Tensor, Tensor], Tensor],
    change_diagonal: Callable[..., Any] = torch._foreach_mul,
) -> list[Tensor]:
    changed = list(xs)
    # the last axis first: the result of a matrix then has rows that are contiguous
    for place in range(-1, -1 - max(map(len, factors)), -1):
        current = {i: parts[place] for i, parts in enumerate(factors) if len(parts) >= -place}
        diagonal = [i for i, factor in current.items() if not factor.triangular]
        if diagonal:
            vectors = [diagonal_along(current[i], len(factors[i])) for i in diagonal]
            for i, x in zip(diagonal, change_diagonal([changed[i] for i in diagonal], vectors), strict=True):
                changed[i] = x
        for i in current.keys() - diagonal:
            changed[i] = along(changed[i], current[i], len(factors[i]), change)
    return changed


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
        """Return the moved factors."""
        return fit([self])[0]


def fit(fits: Sequence[Fit]) -> list[list[Tensor]]:
    """Return every Q_k of some blocks, with one precond_lr, moved by one step."""
    factors = [one.factors for one in fits]
    a = applied([one.gradient for one in fits], factors)
    pairs = list(zip(a, solved_transposed([one.probe for one in fits], factors), strict=True))
    _scale_to_unit_trace([_members(x, one) for one, pair in zip(fits, pairs, strict=True) for x in pair])
    moves = [
        Move(q, unfolded(pair[0], axis, len(one.factors)), unfolded(pair[1], axis, len(one.factors)), triangular)
        for one, pair in zip(fits, pairs, strict=True)
        for axis, q, triangular in one.factors
    ]
    kinds: dict[int, list[int]] = defaultdict(list)
    for place, move in enumerate(moves):
        kinds[move.q.shape[-1] if move.triangular else 0].append(place)
    moved = [move.q for move in moves]
    for size, places in kinds.items():
        function = moved_triangular if size else moved_diagonal
        results = function([moves[place] for place in places], fits[0].precond_lr)
        for place, q in zip(places, results, strict=True):
            moved[place] = q
    rest = iter(moved)
    return [[next(rest) for _ in one.factors] for one in fits]


def _members(x: Tensor, one: Fit) -> Sequence[Tensor]:
    return x.unbind() if x.dim() > len(one.factors) else (x,)


def _scale_to_unit_trace(members: Sequence[Sequence[Tensor]]) -> None:
    """Scale a and b of every parameter, which follow each other, such that each S has trace 1: squares could overflow.

    A factor's move does not depend on their common scale.
    """
    a, b = ([x for stack in members[start::2] for x in stack] for start in (0, 1))
    sizes = torch._foreach_norm(a), torch._foreach_norm(b)
    largest = torch._foreach_maximum(*sizes)
    torch._foreach_clamp_min_(largest, torch.finfo(a[0].dtype).tiny)
    torch._foreach_reciprocal_(largest)
    for each in (a, b):
        torch._foreach_mul_(each, largest)


class Move(NamedTuple):
    """A factor Q_k that moves, and the unfolded A_(k) and B_(k) that it is moved by."""

    q: Tensor
    x: Tensor
    y: Tensor
    triangular: bool


def moved_triangular(moves: Sequence[Move], precond_lr: float) -> list[Tensor]:
    """Return moved matrices of one size, in stacks or alone."""
    qs, xs, ys = (
        [x.view(-1, *x.shape[-2:]) if x.dim() == 2 else x for x in column]
        for column in ([move.q for move in moves], [move.x for move in moves], [move.y for move in moves])
    )
    found = grams(xs, ys)
    # without gradients the bound is zero, and Q would become NaN instead of staying
    bound = norm_bound(found.total).clamp_(min=torch.finfo(found.total.dtype).tiny)
    steps = found.difference.div_(bound[:, None, None]).split([len(q) for q in qs])
    return [minus_product(q, t, precond_lr).view(move.q.shape) for q, t, move in zip(qs, steps, moves, strict=True)]


def moved_diagonal(moves: Sequence[Move], precond_lr: float) -> list[Tensor]:
    """Return moved vectors of any sizes."""
    qs, xs, ys = [move.q for move in moves], [move.x for move in moves], [move.y for move in moves]
    first, second = (
        [square.sum(-1) if square.shape[-1] > 1 else square.squeeze(-1) for square in torch._foreach_mul(zs, zs)]
        for zs in (xs, ys)
    )
    # the norm of a diagonal S is its largest element, and no bound is needed
    rates = [total.amax(-1, keepdim=True) for total in torch._foreach_add(first, second)]
    torch._foreach_clamp_min_(rates, torch.finfo(rates[0].dtype).tiny)
    torch._foreach_reciprocal_(rates)
    torch._foreach_sub_(first, second)
    torch._foreach_mul_(first, qs)
    torch._foreach_mul_(first, [rate.expand_as(q) for rate, q in zip(rates, qs, strict=True)])
    return list(torch._foreach_sub(qs, first, alpha=precond_lr))


def norm_bound(total: Tensor) -> Tensor:
    """Return a lower bound (N) of the spectral norms of symmetric matrices S, (N, n, n), whose trace is at most 1.

    ‖S y‖  with y = S s/‖S s‖, and s the longest column of S
    """
    place = torch.linalg.vector_norm(total, dim=-1).argmax(-1)
    longest = total.gather(-2, place[:, None, None].expand(-1, 1, total.shape[-1]))  # a row, as S is symmetric
    # equal columns: one alone takes longer on a CPU, and has other bits in a stack than without company
    image = torch.bmm(total, longest.mT.expand(-1, -1, COLUMNS))
    # clamp_: of S = 0 the image is zero, and so must be the bound
    size = torch.linalg.vector_norm(image, dim=-2).clamp_(min=torch.finfo(image.dtype).tiny)
    return torch.linalg.vector_norm(torch.bmm(total, image), dim=-2).div_(size)[:, 0]


def balance(factors: Sequence[Factor]) -> None:
    """Scale the Q_k such that their largest elements are equal; their Kronecker product stays the same."""
    lead = factors[0].q.dim() - (2 if factors[0].triangular else 1)
    sizes = torch.stack([factor.q.flatten(lead).abs().amax(-1) for factor in factors])
    # in logarithms: the product of the sizes could leave the range of float32
    scales = sizes.log().mean(0).exp() / sizes
    for (_, q, _), scale in zip(factors, scales, strict=True):
        q.mul_(scale.reshape(*scale.shape, *[1] * (q.dim() - lead)))


def blocks(q: Tensor) -> list[slice]:
    """Return slices of about equal length that make up the columns of Q."""
    n = q.shape[-1]
    count = 1 if group_step.launches_cost(q.device) else min(max(1, n // MIN_BLOCK), MAX_BLOCKS)
    return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of matrices, or of two stacks of them."""
    multiply = torch.bmm if left.dim() == 3 else torch.matmul  # matmul of stacks is several calls
    return multiply(left, right) if out is None else multiply(left, right, out=out)


def times(q: Tensor, x: Tensor) -> Tensor:
    """Return Q X, (…, n, m)."""
    parts = blocks(q)
    if len(parts) == 1:
        return product(q, x)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for r in parts:
        product(q[..., r, r.start :], x[..., r.start :, :], out[..., r, :])
    return out


def transposed_times(q: Tensor, x: Tensor) -> Tensor:
    """Return Qᵀ X, (…, n, m)."""
    parts = blocks(q)
    if len(parts) == 1:
        return product(q.mT, x)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for r in parts:
        product(q[..., : r.stop, r].mT, x[..., : r.stop, :], out[..., r, :])
    return out


def transposed_solve(q: Tensor, x: Tensor) -> Tensor:
    """Return Q⁻ᵀ X, (…, n, m)."""
    return torch.linalg.solve_triangular(q, x.mT, upper=True, left=False).mT  # faster than from the left


class Grams(NamedTuple):
    """Products of N pairs of matrices with themselves.

    Attributes:
        difference: X Xᵀ − Y Yᵀ, (N, n, n), zero below the diagonal.
        total: X Xᵀ + Y Yᵀ, (N, n, n).
    """

    difference: Tensor
    total: Tensor


def grams(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Grams:
    """Return all that a fit needs of X Xᵀ and Y Yᵀ, of stacks (N, n, m) whose m differ, one after the other."""
    counts, n = [len(x) for x in xs], xs[0].shape[-2]
    first, second = xs[0].new_empty(2, sum(counts), n, n)
    parts = blocks(first)
    for r in parts:
        for zs, whole in ((xs, first), (ys, second)):
            for z, part in zip(zs, whole[:, r, r.start :].split(counts), strict=True):
                product(z[:, r], z[:, r.start :].mT, part)
    difference = (first - second).triu_()
    total = first.add_(second)
    if len(parts) > 1:
        above = [total[:, r, r.stop :].mT for r in parts]
        torch._foreach_copy_([total[:, r.stop :, r] for r in parts], above)
    return Grams(difference, total)


def minus_product(q: Tensor, t: Tensor, scale: float) -> Tensor:
    """Return Q − scale · T Q, (N, n, n)."""
    parts = blocks(q)
    if len(parts) == 1:
        return torch.baddbmm(q, t, q, alpha=-scale)
    out = torch.zeros_like(q)
    for place, r in enumerate(parts):
        for c in parts[place:]:
            within = slice(r.start, c.stop)
            torch.baddbmm(q[:, r, c], t[:, r, within], q[:, within, c], alpha=-scale, out=out[:, r, c])
    return out


def pack_all(qs: Sequence[Tensor], lines: Sequence[Tensor]) -> None:
    """Store the upper triangle of each Q (…, n, n) as a line, (…, n (n + 1)/2); `unpacked_all` is the inverse.

    The triangle of the last half of the rows is transposed and fits below that of the first half:

        rows 0 … h − 1, columns h … n − 1 of Q;   then row i = 0 … n − h − 1:   Q[h + j, h + i] for j = 0 … i,
                                                                               Q[i, j] for j = i … h − 1;   h = ⌊n/2⌋

    Reference:
        Gustavson et al. 2010, "Rectangular Full Packed Format for Cholesky's Algorithm", arXiv:0901.1696.
    """
    halves, corners, rectangles = _line_parts(lines, [q.shape[-1] for q in qs])
    cut = list(zip(qs, halves, rectangles, strict=True))
    torch._foreach_copy_(corners, [q[..., :half, half:] for q, half, _ in cut])
    # of an even n the last column is beyond the transposed triangle, and the sum needs zeros there
    torch._foreach_zero_([rectangle[..., q.shape[-1] - half :] for q, half, rectangle in cut])
    lower = [rectangle[..., : q.shape[-1] - half] for q, half, rectangle in cut]
    torch._foreach_copy_(lower, [q[..., half:, half:].mT for q, half, _ in cut])
    torch._foreach_add_(
        [rectangle[..., :half, 1:] for _, half, rectangle in cut], [q[..., :half, :half] for q, half, _ in cut]
    )


def unpacked_all(lines: Sequence[Tensor]) -> list[Tensor]:
    """Return the upper triangular matrix (…, n, n) of each line (…, n (n + 1)/2)."""
    matrices, sizes = list(lines), [math.isqrt(2 * line.shape[-1]) for line in lines]
    places_of: dict[int, list[int]] = defaultdict(list)
    for place, n in enumerate(sizes):
        places_of[n].append(place)
    wholes = []
    for n, places in places_of.items():
        counts = [lines[i].numel() // lines[i].shape[-1] for i in places]
        wholes.append(lines[places[0]].new_empty(sum(counts), n, n))
        for i, q in zip(places, wholes[-1].split(counts), strict=True):
            matrices[i] = q.view(*lines[i].shape[:-1], n, n)
    halves, corners, rectangles = _line_parts(lines, sizes)
    cut = list(zip(matrices, halves, rectangles, strict=True))
    torch._foreach_copy_([q[..., :half, half:] for q, half, _ in cut], corners)
    torch._foreach_copy_(
        [q[..., half:, half:] for q, half, _ in cut], [x[..., : q.shape[-1] - half].mT for q, half, x in cut]
    )
    torch._foreach_copy_([q[..., :half, :half] for q, half, _ in cut], [x[..., :half, 1:] for _, half, x in cut])
    for whole in wholes:
        whole.triu_()
    return matrices


def _line_parts(lines: Sequence[Tensor], sizes: Sequence[int]) -> tuple[list[int], list[Tensor], list[Tensor]]:
    """Return h, the corner (…, h, n − h) and the rectangle (…, n − h, h + 1) of each line."""
    halves = [n // 2 for n in sizes]
    corners, rectangles = [], []
    for line, n, half in zip(lines, sizes, halves, strict=True):
        corner, rectangle = line.split((half * (n - half), (n - half) * (half + 1)), -1)
        corners.append(corner.unflatten(-1, (half, n - half)))
        rectangles.append(rectangle.unflatten(-1, (n - half, half + 1)))
    return halves, corners, rectangles
