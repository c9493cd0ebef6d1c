"""The update of a matrix, made orthogonal: all its singular values become about 1.

By Newton-Schulz iterations, QR or SVD. Shapes: R×C matrices, m = min(R, C) and n = max(R, C); leading axes are a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Annotated

import torch
from torch import Tensor

from optim.engine.distributed import divided
from optim.engine.options import FLOAT_DTYPE, SWITCH, WHOLE
from optim.engine.param_batch import Group, ParamBatch, Update
from optim.engine.transform import GroupTransform
from optim.transforms.matrices import addmm, matmul

ITERATIVE = ("newton_schulz", "polar_express")
METHODS = (*ITERATIVE, "qr", "svd")
NUM_STEPS = 5
EQUILIBRATED = {"rows": (-1,), "columns": (-2,), "both": (-1, -2)}
"""What is summed for the norms, by the name in ``equilibrate``."""
EQUILIBRATION_EPS = 1e-8
SIZES = {
    "original": lambda rows, cols: max(1.0, rows / cols) ** 0.5,
    "match_rms_adamw": lambda rows, cols: 0.2 * max(rows, cols) ** 0.5,
    "spectral": lambda rows, cols: (rows / cols) ** 0.5,
}
"""Length of the orthogonal update of a rows×cols matrix, by the name in ``adjust_lr_fn``."""
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


class Orthogonalize(GroupTransform):
    """Replaces the update of a matrix by an orthogonal matrix close to it, times a length that follows from its shape.

        u ≈ U Vᵀ of u = U Σ Vᵀ,   u ← s u

    with s by ``adjust_lr_fn``, for a matrix of R rows and C columns:

        original         √max(1, R/C)      Jordan's
        match_rms_adamw  0.2 √max(R, C)    rms(u) = 0.2, about that of AdamW's updates, so that an lr tuned for it fits
        spectral         √(R/C)            an input of RMS 1 changes the output by at most 1, for all shapes

    What is no matrix: a parameter with fewer than two axes keeps its update. One with more is seen as a matrix of its
    first axis by all others, as of convolutions (out, in, k, …); with ``stacked_matrices`` its last two axes are
    matrices, and the others count them, as of stacked layers or experts. A depthwise kernel (channels, 1, k) becomes
    channels×k, whose rows have nothing to do with each other: leave it to another optimizer.

    Args:
        orthogonalization: ``newton_schulz`` (Jordan's polynomial: fast, singular values end between 0.7 and 1.2),
            ``polar_express`` (its best sequence: nearer to 1), ``svd`` (U Vᵀ itself, slow) or ``qr`` (Q instead of
            U Vᵀ; treats rows or columns unequally).
        ns_steps: iterations of the first two, 1 to 100; each costs about a product of the matrix by itself.
        ns_dtype: of their arithmetic; None for float32 (float64 for float64 parameters) on a CPU, and bfloat16 on other
            devices, where it is faster. On a CPU bfloat16 takes 0.7 times as long if the processor has instructions for
            it, such as AVX512_BF16, and several times as long otherwise.
        adjust_lr_fn: see above; torch.optim.Muon's name.
        stacked_matrices: see above.
        shard_matrix_work: in a distributed run, divide the matrices over the processes; see
            `optim.engine.distributed.divided`. All processes must hold gradients of the same parameters.
        equilibrate: divide the ``rows`` of the matrix, its ``columns``, or ``both``, by their norms before (MuonEq).
        name: see `Transform`.

    Reference:
        Jordan et al. 2024, "Muon", kellerjordan.github.io/posts/muon; Liu et al. 2025, "Muon is Scalable for LLM
        Training", arXiv:2502.16982; Amsel et al. 2025, "The Polar Express", arXiv:2505.16932; Chang et al. 2026,
        "MuonEq: Balancing Before Orthogonalization with Lightweight Equilibration", arXiv:2603.28254.
    """

    orthogonalization: Annotated[str | None, [*METHODS]] = "newton_schulz"
    ns_steps: Annotated[int, "[1, 100]" + WHOLE] = NUM_STEPS
    ns_dtype: Annotated[torch.dtype | str | None, FLOAT_DTYPE] = None
    adjust_lr_fn: Annotated[str, [*SIZES]] = "original"
    stacked_matrices: Annotated[bool, SWITCH] = False
    shard_matrix_work: Annotated[bool, SWITCH] = False
    equilibrate: Annotated[str | None, [None, *EQUILIBRATED]] = None

    def check(self, group: Group) -> None:
        """Refuse options of the iterations beside a method that does not iterate."""
        method = group["orthogonalization"]
        if method not in ITERATIVE and (group["ns_steps"], group["ns_dtype"]) != (NUM_STEPS, None):
            raise ValueError(
                f"ns_steps and ns_dtype belong to {' and '.join(ITERATIVE)} and do nothing for {method!r}; leave them "
                f"at {NUM_STEPS} and None, given {group['ns_steps']!r} and {group['ns_dtype']!r}"
            )

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, orthogonal if it is a matrix."""
        if not self.takes(batch):
            return update
        return self.resized(orthogonal(as_matrices(update.value(), batch), batch.group), batch)

    def takes(self, batch: ParamBatch) -> bool:
        """Return whether parameters are matrices, or seen as such."""
        return len(batch.shape) >= 2

    def resized(self, matrices: Tensor, batch: ParamBatch) -> Update:
        """Return the update that orthogonal matrices (…, R, C) make, in the parameters' shape, as long as asked for."""
        size = SIZES[batch.group["adjust_lr_fn"]](*matrices.shape[-2:])
        return Update(matrices.reshape(batch.param.shape), size, overwritable=True)

    def of_group(self, updates: Sequence[Update], batches: Sequence[ParamBatch]) -> Sequence[Update]:
        """Return all updates, each matrix orthogonalized by one process."""
        taken = [place for place, batch in enumerate(batches) if self.takes(batch)]
        matrices = [as_matrices(updates[place].value(), batches[place]) for place in taken]
        costs = [x.numel() * min(x.shape[-2:]) for x in matrices]
        like = [[x] for x in matrices]
        results = iter(divided(lambda x: [orthogonal(x, batches[0].group)], matrices, costs, like))
        return [
            self.resized(next(results)[0], batch) if self.takes(batch) else self(update, batch)
            for update, batch in zip(updates, batches, strict=True)
        ]


def as_matrices(x: Tensor, batch: ParamBatch) -> Tensor:
    """Return updates of two or more axes as matrices, (rows, cols) or (N, rows, cols)."""
    if batch.group["stacked_matrices"]:
        return x.flatten(0, -3) if x.dim() > 3 else x
    return x.flatten(2 if batch.stacked else 1)


def matrix_axes(num_axes: int, group: Group) -> tuple[int, ...]:
    """Return the axes of a parameter that make one matrix, counted from the end; the first has its rows."""
    return tuple(range(-2 if group["stacked_matrices"] and num_axes > 2 else -num_axes, 0))


def orthogonal(x: Tensor, group: Group) -> Tensor:
    """Return orthogonal matrices close to x (…, R, C), in its shape and dtype and contiguous, by a group's options."""
    # contiguous, as what another process sends: the order of a later sum follows the layout, and so do its last bits
    method, axes = group["orthogonalization"], EQUILIBRATED.get(group["equilibrate"], ())
    if axes:
        # of the matrix as it came, also for both
        norms = [(x.square().sum(axis, keepdim=True) + EQUILIBRATION_EPS).rsqrt_() for axis in axes]
        x = reduce(torch.mul, norms, x)
    if method not in ITERATIVE:
        return (by_svd(x) if method == "svd" else by_qr(x)).contiguous()
    dtype = x.dtype if x.dtype == torch.float64 or x.device.type == "cpu" else torch.bfloat16
    if group["ns_dtype"] is not None:
        dtype = getattr(torch, group["ns_dtype"])
    return newton_schulz(x, polynomials(method, group["ns_steps"]), dtype).to(x.dtype).contiguous()


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
