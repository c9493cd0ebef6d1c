"""The factors of `KronPreconditioner`: how they are applied, fitted and balanced; that class explains the symbols.

Legend: x a tensor (…, *shape) of d axes, with the leading axis of a stack or none; Q_k upper triangular (…, n, n), or
the diagonal (…, n) of a diagonal factor; X and Y (…, n, m) with the axis of Q_k first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from optim.psgd.triangular import Grams, grams, subtract_product, times, transposed_solve, transposed_times

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
    """Return x as (…, n, m), n along an axis counted from the end."""
    if num_axes == 1:
        return x.unsqueeze(-1)
    if num_axes == 2:
        return x if axis == -2 else x.mT  # views
    return x.movedim(axis, -num_axes).flatten(1 - num_axes)


def along(x: Tensor, factor: Factor, num_axes: int, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return x with ``change(Q_k, X)`` in place of X."""
    changed = change(factor.q, unfolded(x, factor.axis, num_axes))
    if num_axes == 1:
        return changed.squeeze(-1)
    if num_axes == 2:
        return changed if factor.axis == -2 else changed.mT
    others = x.movedim(factor.axis, -num_axes).shape[1 - num_axes :]
    return changed.unflatten(-1, others).movedim(-num_axes, factor.axis)


def scaled(x: Tensor, factor: Factor, num_axes: int, by: Tensor) -> Tensor:
    """Return x times a vector (…, n) along the axis of a factor."""
    lead, size = by.shape[:-1], by.shape[-1]
    return x * by.reshape(*lead, *[1] * (num_axes + factor.axis), size, *[1] * (-1 - factor.axis))


def applied(x: Tensor, factors: Sequence[Factor]) -> Tensor:
    """Return x ×₁ Q₁ ×₂ Q₂ …."""
    # the last axis first: the result of a matrix then has rows that are contiguous
    for factor in reversed(factors):
        x = along(x, factor, len(factors), times) if factor.triangular else scaled(x, factor, len(factors), factor.q)
    return x


def applied_transposed(x: Tensor, factors: Sequence[Factor]) -> Tensor:
    """Return x ×₁ Q₁ᵀ ×₂ Q₂ᵀ …."""
    for factor in reversed(factors):
        x = (
            along(x, factor, len(factors), transposed_times)
            if factor.triangular
            else scaled(x, factor, len(factors), factor.q)
        )
    return x


def applied_products(x: Tensor, products: Sequence[Factor]) -> Tensor:
    """Return x ×₁ (Q₁ᵀ Q₁) ×₂ …, given these products in place of the Q_k."""
    for factor in reversed(products):
        x = (
            along(x, factor, len(products), torch.matmul)
            if factor.triangular
            else scaled(x, factor, len(products), factor.q)
        )
    return x


def solved_transposed(x: Tensor, factors: Sequence[Factor]) -> Tensor:
    """Return x ×₁ Q₁⁻ᵀ ×₂ Q₂⁻ᵀ …."""
    for factor in reversed(factors):
        if factor.triangular:
            x = along(x, factor, len(factors), transposed_solve)
        else:
            x = scaled(x, factor, len(factors), factor.q.reciprocal())
    return x


def product_of(factor: Factor) -> Tensor:
    """Return Q_kᵀ Q_k."""
    return transposed_times(factor.q, factor.q) if factor.triangular else factor.q.square()


def fit(gradient: Tensor, probe: Tensor, factors: Sequence[Factor], precond_lr: float) -> None:
    """Move every Q_k by one step, in place."""
    a, b = applied(gradient, factors), solved_transposed(probe, factors)
    tiny = torch.finfo(a.dtype).tiny
    for axis, q, triangular in factors:
        x, y = (unfolded(each, axis, len(factors)) for each in (a, b))
        if triangular:
            found = grams(x, y)
            bound = norm_bound(found).clamp_(min=tiny)
            subtract_product(q, found.difference, precond_lr / bound[..., None, None])
        else:
            first, second = x.square().sum(-1), y.square().sum(-1)
            largest = (first + second).amax(-1, keepdim=True).clamp_(min=tiny)
            q.sub_((first - second).mul_(q).mul_(precond_lr / largest))


class Fit(NamedTuple):
    """The update of one block's factors: what `fit` takes."""

    gradient: Tensor
    probe: Tensor
    factors: list[Factor]
    precond_lr: float

    def compute(self) -> list[Tensor]:
        """Move the factors in place, and return them."""
        fit(*self)
        return [factor.q for factor in self.factors]


def norm_bound(found: Grams) -> Tensor:
    """Return a lower bound (…) of the spectral norm of S = X Xᵀ + Y Yᵀ.

    ‖S y‖  with y = S s/‖S s‖, and s the longest column of S
    """
    place = found.column_squares.argmax(-1, keepdim=True)
    one = torch.zeros_like(found.column_squares).scatter_(-1, place, 1)
    image = _symmetric_times(found.total, _symmetric_times(found.total, one))
    image = image / torch.linalg.vector_norm(image, dim=-1, keepdim=True).clamp_(min=torch.finfo(image.dtype).tiny)
    return torch.linalg.vector_norm(_symmetric_times(found.total, image), dim=-1).mul_(found.largest)


def _symmetric_times(upper: Tensor, x: Tensor) -> Tensor:
    x = x.unsqueeze(-1)
    product = upper @ x + upper.mT @ x
    return product.squeeze(-1) - upper.diagonal(dim1=-2, dim2=-1) * x.squeeze(-1)


def balance(factors: Sequence[Factor]) -> None:
    """Scale the Q_k such that their largest elements are equal; their Kronecker product stays the same."""
    lead = factors[0].q.dim() - (2 if factors[0].triangular else 1)
    sizes = torch.stack([factor.q.flatten(lead).abs().amax(-1) for factor in factors])
    scales = sizes.log().mean(0).exp() / sizes
    for (_, q, _), scale in zip(factors, scales, strict=True):
        q.mul_(scale.reshape(*scale.shape, *[1] * (q.dim() - lead)))
