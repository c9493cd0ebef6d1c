"""The update of a matrix, made orthogonal: all its singular values become about 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from optim.engine.distributed import divided
from optim.engine.options import FLOAT_DTYPE, SWITCH, WHOLE
from optim.engine.param_batch import Group, ParamBatch, Update
from optim.engine.transform import GroupTransform
from optim.muon.polar_factor import by_qr, by_svd, newton_schulz, polynomials

ITERATIVE = ("newton_schulz", "polar_express")
METHODS = (*ITERATIVE, "qr", "svd")
NUM_STEPS = 5
SIZES = {
    "original": lambda rows, cols: max(1.0, rows / cols) ** 0.5,
    "match_rms_adamw": lambda rows, cols: 0.2 * max(rows, cols) ** 0.5,
    "spectral": lambda rows, cols: (rows / cols) ** 0.5,
}
"""Length of the orthogonal update of a rows×cols matrix, by the name in ``adjust_lr_fn``."""


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
        more: options of a subclass, and the name; see `Transform`.

    Reference:
        Jordan et al. 2024, "Muon", kellerjordan.github.io/posts/muon; Liu et al. 2025, "Muon is Scalable for LLM
        Training", arXiv:2502.16982; Amsel et al. 2025, "The Polar Express", arXiv:2505.16932.
    """

    allowed: ClassVar = {
        "orthogonalization": [*METHODS],
        "ns_steps": "[1, 100]" + WHOLE,
        "ns_dtype": FLOAT_DTYPE,
        "adjust_lr_fn": [*SIZES],
        "stacked_matrices": SWITCH,
        "shard_matrix_work": SWITCH,
    }

    def __init__(
        self,
        orthogonalization: str = "newton_schulz",
        ns_steps: int = NUM_STEPS,
        ns_dtype: torch.dtype | str | None = None,
        adjust_lr_fn: str = "original",
        stacked_matrices: bool = False,
        shard_matrix_work: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(
            orthogonalization=orthogonalization,
            ns_steps=ns_steps,
            ns_dtype=ns_dtype,
            adjust_lr_fn=adjust_lr_fn,
            stacked_matrices=stacked_matrices,
            shard_matrix_work=shard_matrix_work,
            **more,
        )

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

    def takes_all(self, group: Group) -> bool:
        """Return whether the matrices are divided over processes."""
        return bool(group["shard_matrix_work"])

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
    method = group["orthogonalization"]
    if method not in ITERATIVE:
        return (by_svd(x) if method == "svd" else by_qr(x)).contiguous()
    dtype = x.dtype if x.dtype == torch.float64 or x.device.type == "cpu" else torch.bfloat16
    if group["ns_dtype"] is not None:
        dtype = getattr(torch, group["ns_dtype"])
    return newton_schulz(x, polynomials(method, group["ns_steps"]), dtype).to(x.dtype).contiguous()
