"""The factors of `KronPreconditioner`: how they are applied, fitted and balanced; that class explains the symbols.

Legend: x a tensor (…, *shape) of d axes, with the leading axis of a stack or none; Q_k upper triangular (…, n, n), or
the diagonal (…, n) of a diagonal factor; X and Y (…, n, m) with the axis of Q_k first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from optim.engine import group_step
from optim.psgd.triangular import (
    Grams,
    grams,
    grams_of_stacks,
    of_equal_size,
    subtract_product,
    times,
    transposed_solve,
    transposed_times,
)

MEMORY_SAVE_MODES = (None, "one_diag", "all_diag")


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
    # the last axis first: the result of a matrix then has rows that are contiguous
    for factor in reversed(factors):
        x = along(x, factor, len(factors), times) if factor.triangular else scaled(x, factor, len(factors), factor.q)
    return x


def applied_transposed(x: Tensor, factors: Sequence[Factor]) -> Tensor:
    """Return x ×₁ Q₁ᵀ ×₂ Q₂ᵀ …, (…, *shape) like x."""
    for factor in reversed(factors):
        x = (
            along(x, factor, len(factors), transposed_times)
            if factor.triangular
            else scaled(x, factor, len(factors), factor.q)
        )
    return x


def applied_products(x: Tensor, products: Sequence[Factor]) -> Tensor:
    """Return x ×₁ (Q₁ᵀ Q₁) ×₂ …, (…, *shape) like x, given these products in place of the Q_k."""
    for factor in reversed(products):
        x = (
            along(x, factor, len(products), torch.matmul)
            if factor.triangular
            else scaled(x, factor, len(products), factor.q)
        )
    return x


def solved_transposed(x: Tensor, factors: Sequence[Factor]) -> Tensor:
    """Return x ×₁ Q₁⁻ᵀ ×₂ Q₂⁻ᵀ …, (…, *shape) like x."""
    for factor in reversed(factors):
        if factor.triangular:
            x = along(x, factor, len(factors), transposed_solve)
        else:
            x = scaled(x, factor, len(factors), factor.q.reciprocal())
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
