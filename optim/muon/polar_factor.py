"""Orthogonal factors of matrices: Newton-Schulz iterations, QR and SVD.

Shapes: R×C matrices, m = min(R, C) and n = max(R, C); leading axes are a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from optim.transforms.matrices import addmm, matmul

Coefficients = tuple[float, float, float]

# slope 3.4 at zero; singular values end between about 0.7 and 1.2, which Muon does not mind
JORDAN: Coefficients = (3.4445, -4.7750, 2.0315)
# the best polynomials for singular values from 1e-3 of the norm on, one per iteration; the last one repeats
POLAR_EXPRESS: tuple[Coefficients, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
SAFETY = 1.01
"""What Polar Express divides its arguments by, so that rounding pushes no singular value out of their interval."""

EPS = 1e-7
"""Smallest norm that a matrix is divided by, as in torch.optim.Muon."""
WIDE = 1.4
"""From this n/m on it is cheaper to iterate on the m×m Gram matrix than on the matrix; measured on a CPU."""
MAX_NOISE = 3e-3
"""How far the rounding of a Gram matrix may grow, relative to 1, before it is computed anew."""


@lru_cache(maxsize=64)
def polynomials(method: str, num_steps: int) -> tuple[Coefficients, ...]:
    """Return the coefficients (a, b, c) of a x + b x³ + c x⁵ for each iteration.

    Args:
        method: ``newton_schulz`` for Jordan's polynomial in all iterations, or ``polar_express``.
        num_steps: iterations, at least 1.
    """
    if method == "newton_schulz":
        return (JORDAN,) * num_steps
    *first, last = POLAR_EXPRESS
    safe = [(a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in first]
    return tuple((safe + [last] * max(0, num_steps - len(safe)))[:num_steps])


def newton_schulz(x: Tensor, coefficients: Sequence[Coefficients], dtype: torch.dtype) -> Tensor:
    """Bring all singular values near 1 with products of matrices alone; zero stays zero.

        X ← X/max(‖X‖_F, EPS),   then for each (a, b, c):   A = X Xᵀ,  B = b A + c A²,  X ← a X + B X

    If n ≥ WIDE m, the iterations run on the Gram matrix, since all their matrices commute:

        A = X Xᵀ,  Q = I,   then for each (a, b, c):   P = a I + B,  Q ← P Q,  A ← P A P,   X ← Q X at the end

    The rounding of A grows by a² in each iteration; before it exceeds MAX_NOISE, X ← Q X and A is computed anew. In
    bfloat16 that is in every iteration, which is the first form.

    Args:
        x: (R, C) or (N, R, C); not modified.
        coefficients: of each iteration.
        dtype: of the iterations. The norm is taken before, in the dtype of x: in float16 it could overflow.

    Returns:
        As x in shape, in ``dtype``, new memory.

    Reference:
        Jordan et al. 2024, "Muon", kellerjordan.github.io/posts/muon; Amsel et al. 2025, "The Polar Express",
        arXiv:2505.16932, algorithm 1; Zhang et al. 2026, "Gram Newton-Schulz", dao-lab.ai/blog/2026/gram-newton-schulz.
        Differs: recomputes A when the bound of its rounding says so, not at fixed iterations.
    """
    # clamp and not a sum: a matrix of zeros stays one, others have a norm of exactly 1
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_(min=EPS)
    return iterate((x / norm).to(dtype), coefficients)


def iterate(x: Tensor, coefficients: Sequence[Coefficients]) -> Tensor:
    """Do the same from a norm of at most 1, in the dtype of x (..., R, C)."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    wide = x.shape[-1] >= WIDE * x.shape[-2]
    x = _iterate(x, coefficients, MAX_NOISE / torch.finfo(x.dtype).eps if wide else 0.0)
    return x.mT if tall else x


def _iterate(x: Tensor, coefficients: Sequence[Coefficients], max_growth: float) -> Tensor:
    """Iterate on (..., m, n) of norm 1; after a growth of rounding above ``max_growth`` on the matrix itself."""
    # in order once, and not in every product
    x = x.contiguous()
    gram, q, growth = matmul(x, x.mT), None, 1.0
    for i, (a, b, c) in enumerate(coefficients):
        poly = addmm(gram, gram, gram, beta=b, alpha=c)
        growth *= a * a
        is_last = i + 1 == len(coefficients)
        q = q if q is None else addmm(q, poly, q, beta=a)
        if is_last or growth > max_growth:
            # a X beside B X and not P X: in bfloat16 the diagonal of P would lose the digits of B
            x = addmm(x, poly, x, beta=a) if q is None else matmul(q, x)
            q, growth, gram = None, 1.0, gram if is_last else matmul(x, x.mT)
            continue
        half = addmm(gram, poly, gram, beta=a)
        gram = addmm(half, poly, half, beta=a)
        if q is None:
            q = poly
            q.diagonal(dim1=-2, dim2=-1).add_(a)
    return x


def by_svd(x: Tensor) -> Tensor:
    """Return U Vᵀ of x = U Σ Vᵀ, (..., R, C); singular vectors whose singular value is zero are left out."""
    u, sigma, vt = torch.linalg.svd(x, full_matrices=False)
    # they are arbitrary: a matrix of zeros would otherwise make a step of full length
    return (u * _is_nonzero(sigma, x)) @ vt


def by_qr(x: Tensor) -> Tensor:
    """Return Q of x = Q R with a positive diagonal of R, (..., R, C); of xᵀ if x has more columns than rows.

    The signs make it unique, and ⟨Q, x⟩ positive: the other Q could point uphill. A column of Q is zero where R's
    diagonal is, that is, for each column of x that depends on earlier ones.
    """
    wide = x.shape[-1] > x.shape[-2]
    q, r = torch.linalg.qr(x.mT if wide else x)
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    signed = q * (diagonal.sign().unsqueeze(-2) * _is_nonzero(diagonal.abs(), x))
    return signed.mT if wide else signed


def _is_nonzero(sizes: Tensor, x: Tensor) -> Tensor:
    """Return (..., 1, m), 1 where a size is above what rounding leaves of zero, and 0 elsewhere."""
    limit = max(x.shape[-2:]) * torch.finfo(x.dtype).eps * sizes.amax(-1, keepdim=True)
    return (sizes > limit).to(x.dtype).unsqueeze(-2)
