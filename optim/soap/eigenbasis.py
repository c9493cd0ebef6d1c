"""The matrices of `RotatedAdam`: covariances of gradients, and bases of their eigenvectors.

Legend: x (d₁, …, dₖ), or (N, d₁, …, dₖ) for a stack of N. C (d, d) or (N, d, d), in which elements above the diagonal
may be old. Q (d, d) or (N, d, d), whose rows are eigenvectors, or None for an axis that is left alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from optim.engine import group_step
from optim.transforms.matrices import matmul

STRIP = 128  # rows of a covariance that are computed by one call: fewer skip more above the diagonal, but call more
STACK_NUMEL = 1 << 25  # elements of bases that are improved together: they take 40 bytes each
FLOOR = 1e-10  # of the largest eigenvalue, where gradients are zero


class Block(NamedTuple):
    """One block of a parameter, or of a stack of them: its gradient, averages and matrices, changed in place.

    Attributes:
        grad: (d₁, …, dₖ) or (N, d₁, …, dₖ), not modified.
        exp_avg: m, in the basis.
        exp_avg_sq: v, in the basis.
        covariances: C or None, one per axis.
        bases: Q or None, one per axis.
    """

    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    covariances: list[Tensor | None]
    bases: list[Tensor | None]

    def cover(self, decay: float) -> None:
        """Add the gradient to the covariances."""
        for axis, covariance, _ in self._matrices():
            cover(covariance, self.grad, axis, decay)

    def turns(self, *, first: bool) -> list[Turn]:
        """Return what is to be computed for new bases.

        Args:
            first: whether there is no basis yet, and the covariances know one gradient.
        """
        numel = math.prod(self.grad.shape[self.grad.dim() - len(self.bases) :])
        turns = []
        for axis, covariance, basis in self._matrices():
            mirror(covariance)
            turns.append(Turn(covariance, basis, numel // self.grad.shape[axis] if first else None))
        return turns

    def turn(self, results: Sequence[Sequence[Tensor]], *, first: bool) -> None:
        """Set the bases to the new ones, and turn the averages with them.

        Args:
            results: of each of the `turns` the new basis, (…, d, d), and unless ``first`` an order, (…, d).
            first: as there.
        """
        average = self.exp_avg if first else rotated(self.exp_avg, self.bases, back=True)
        for (axis, _, basis), (new, *orders) in zip(self._matrices(), results, strict=True):
            basis.copy_(new)
            for order in orders:
                self.exp_avg_sq.copy_(reordered(self.exp_avg_sq, order, axis))
        if not first:
            self.exp_avg.copy_(rotated(average, self.bases))

    def _matrices(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        for axis, (covariance, basis) in enumerate(zip(self.covariances, self.bases, strict=True), -len(self.bases)):
            if covariance is not None and basis is not None:
                yield axis, covariance, basis


class Turn(NamedTuple):
    """The basis of one axis that is to be made or improved.

    Attributes:
        covariance: C, whole.
        basis: Q, which is not modified.
        rank: that a first covariance can have at most; None if Q is to be improved.
    """

    covariance: Tensor
    basis: Tensor
    rank: int | None

    def like(self) -> list[Tensor]:
        """Return tensors like the results of `compute`."""
        order = self.basis.new_empty(self.basis.shape[:-1], dtype=torch.int64)
        return [self.basis, order] if self.rank is None else [self.basis]

    def compute(self) -> list[Tensor]:
        """Return the new basis, and if there was one, which of the old vectors each of its vectors comes from."""
        if self.rank is None:
            return [x.contiguous() for x in next_basis(self.covariance, self.basis)]
        return [first_basis(self.covariance, self.rank).contiguous()]


def computed(turns: Sequence[Turn]) -> list[list[Tensor]]:
    """Return the results of all turns; on an accelerator, bases of one size are improved together."""
    results: list[list[Tensor]] = [[] for _ in turns]
    together: dict[object, list[int]] = defaultdict(list)
    for place, turn in enumerate(turns):
        alone = turn.rank is not None or not group_step.launches_cost(turn.basis.device)
        together[place if alone else turn.basis.shape[-1:]].append(place)
    for places in together.values():
        if len(places) == 1:
            results[places[0]] = turns[places[0]].compute()
            continue
        bases = [turns[i].basis.view(-1, *turns[i].basis.shape[-2:]) for i in places]
        covariances = [turns[i].covariance.view_as(basis) for i, basis in zip(places, bases, strict=True)]
        most = max(1, STACK_NUMEL // bases[0][0].numel())
        pieces = zip(torch.cat(covariances).split(most), torch.cat(bases).split(most), strict=True)
        improved = [Turn(covariance, basis, None).compute() for covariance, basis in pieces]
        whole = (torch.cat(x) for x in zip(*improved, strict=True))
        parts = zip(*(x.split([len(basis) for basis in bases]) for x in whole), strict=True)
        for i, (basis, order) in zip(places, parts, strict=True):
            results[i] = [basis.view_as(turns[i].basis), order.view(turns[i].basis.shape[:-1])]
    return results


def rotated(x: Tensor, bases: Sequence[Tensor | None], *, back: bool = False) -> Tensor:
    """Return x, (d₁, …, dₖ) or (N, d₁, …, dₖ), in the bases of all its axes, or back from them."""
    first = x.dim() - len(bases)
    for basis in bases:
        # the first axis becomes the last: after all of them they are in order again, and no product copies x
        rest = x.shape[:first] + x.shape[first + 1 :]
        columns = x.reshape(*x.shape[: first + 1], -1).mT
        if basis is not None:
            columns = matmul(columns, basis if back else basis.mT)
        x = columns.reshape(*rest, columns.shape[-1])
    return x


def cover(covariance: Tensor, x: Tensor, axis: int, decay: float) -> None:
    """C ← decay C + (1 − decay) X Xᵀ, (…, d, d); rows of X are the slices of x along an axis counted from the end."""
    first = covariance.dim() - 2
    rows = x.movedim(axis, first).reshape(*covariance.shape[:-1], -1)
    if group_step.launches_cost(x.device):
        plus = covariance.baddbmm_ if first else covariance.addmm_
        plus(rows, rows.mT, beta=decay, alpha=1 - decay)
        return
    if first:
        covariance.lerp_(rows @ rows.mT, 1 - decay)
        return
    rows = rows.contiguous()
    for start in range(0, len(rows), STRIP):
        stop = min(start + STRIP, len(rows))
        # C is symmetric: what lies right of the strip's end would cost up to half of the products
        product = matmul(rows[start:stop], rows[:stop].mT)
        covariance[start:stop, :stop].lerp_(product, 1 - decay)


def mirror(covariance: Tensor) -> None:
    """Fill the part of C (…, d, d) that `cover` leaves out, or left out before parameters were stacked differently."""
    for start in range(STRIP, covariance.shape[-1], STRIP):
        stop = start + STRIP
        covariance[..., :start, start:stop].copy_(covariance[..., start:stop, :start].mT)


def first_basis(covariance: Tensor, rank: int) -> Tensor:
    """Return the eigenvectors of C as rows, (…, d, d), the largest eigenvalue's first.

    Args:
        covariance: of a single gradient.
        rank: which it can have at most.
    """
    # eigh raises for NaN, which is the one parameter's trouble and not that of the step
    _, columns = torch.linalg.eigh(covariance.nan_to_num(0.0, 0.0, 0.0))
    columns = columns.flip(-1)
    if rank < columns.shape[-1]:
        # rounding decides which vectors eigh returns for the eigenvalue 0, and Adam's steps depend on them; what
        # Householder's reflections add to the others depends on those alone
        columns = torch.linalg.qr(columns[..., :rank], mode="complete").Q
    return columns.mT


def next_basis(covariance: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return the basis (…, d, d) after one power iteration, and which old vector each new one comes from, (…, d).

    The signs of its vectors differ between devices; no step depends on them.
    """
    powers = matmul(basis, covariance)
    eigenvalues = (powers * basis).sum(-1)
    order = eigenvalues.argsort(dim=-1, descending=True, stable=True)
    # in this order, because QR changes the first columns least, and those of large eigenvalues are known best
    device = powers.device
    if powers.dtype != torch.float32 or not group_step.launches_cost(device) or device.type == "mps":
        return torch.linalg.qr(reordered(powers, order, -2).mT).Q.mT, order
    # C plus a multiple of I has the same eigenvectors, and makes no vector zero or the multiple of another
    floor = eigenvalues.amax(-1)[..., None, None].double().mul_(FLOOR).clamp_(min=1e-100)
    return orthonormal(reordered(powers + basis * floor, order, -2)).float(), order


def orthonormal(rows: Tensor) -> Tensor:
    """Return the Q of QR of linearly independent vectors, in float64 and up to signs, by calls that take a whole stack.

    torch's QR on a GPU takes one matrix after the other, which is nearly all of SOAP's time there.

    Args:
        rows: (…, n, n) float64, the vectors.

    Reference:
        Fukaya et al. 2020, "Shifted Cholesky QR for Computing the QR Factorization of Ill-Conditioned Matrices",
        arXiv:1809.11085. Differs: each of the three passes normalizes the vectors, and shifts.
    """
    # ten times as much as Cholesky's factor was found to need
    shift = 50 * rows.shape[-1] * torch.finfo(rows.dtype).eps
    for _ in range(3):
        rows = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        gram = rows @ rows.mT
        gram.diagonal(dim1=-2, dim2=-1).add_(shift)
        # cholesky would wait for the device, to raise for NaN
        rows = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(gram).L, rows, upper=False)
    return rows


def reordered(x: Tensor, order: Tensor, axis: int) -> Tensor:
    """Return x with its slices along an axis, counted from the end, in another order; (d) or (N, d) indices."""
    if order.dim() == 1:
        return x.index_select(axis, order)
    shape = [1] * x.dim()
    shape[0], shape[axis] = order.shape
    return x.take_along_dim(order.reshape(shape), axis)
