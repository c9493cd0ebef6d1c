"""Gradients multiplied on each axis by a matrix that is learnt, and steps of a fixed length."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Group, Scalar, State, Update, state_dtype, zeros
from optim.options import WHOLE
from optim.transform import Transform
from optim.transforms.mode_products import multiplied, unfolded

SMALL = 5  # elements up to which a tensor is no matter of axes
META_NORMS = ("frobenius", "rms", "rms_squared")
TINY = 1e-20


class LearnedAxes(Transform):
    """The averaged gradient, multiplied on each axis k by a learnt symmetric positive definite matrix M_k.

    At the parameter's own step t = 0, 1, …; x ×_k M multiplies x by M along axis k, G_(k) unfolds g along it. Axes
    are learnt unless their size is 1 or that of the whole tensor; above ``max_full_dim``, M_k and C_k are diagonal.
    Every ``lr_est_period`` steps, with ḡ as it was after the previous step and μ = lr · meta_lr_scale:

        C_k ← β₂ C_k + G_(k) G_(k)ᵀ
        d = ḡ ×₁ M₁ ×₂ M₂ …,   c = d ×₁ C₁/mean(diag C₁) ×₂ …,   r = √mean(d c)
        h = g/r − ⟨g, d⟩/(r³ N) · c                      the derivative by d of J = ⟨g, d⟩/r
        D_k = h_(k) (ḡ ×_{j≠k} M_j)_(k)ᵀ,   S_k = ½ (D_k + D_kᵀ) M_k,   A_k = I + μ S_k/‖S_k‖
        M_k ← A_k M_k A_kᵀ, over its mean diagonal;   M_k ← (1 − identity_mix) M_k + identity_mix I

    Where r is not finite and positive, as before any gradient, M stays; so does an M_k that would not be finite.
    Every step:

        ḡ ← β₁ ḡ + (1 − β₁) g,   d = ḡ ×₁ M₁ ×₂ M₂ …,   ρ = rms(d) + eps
        u = lr · r_p · √((1 − β₁)/(1 + β₁)) · clip(d, ±max_step_scale ρ)/ρ         r_p: what `LogSize` keeps

    Tensors of up to 5 elements: v ← β₂ v + (1 − β₂) g², u = lr · r_p · ḡ/(√(mean(v)/(1 − β₂ᵗ⁺¹)) + eps), with r_p = 1
    for a single element.

    State: ḡ (``exp_avg``); M_k and C_k (``matrix_<axis>``, ``covariance_<axis>``), or v (``exp_avg_sq``).

    Args:
        meta_lr_scale: μ relative to lr, at least 0.
        betas: decay of ḡ, and of C and v.
        eps: added to ρ and to the root.
        lr_est_period: steps between two updates of the M_k.
        max_step_scale: limit of an element of d, in units of ρ.
        max_full_dim: largest axis with a full matrix.
        meta_norm: ‖·‖ is "frobenius"; "rms" its value per element; "rms_squared" that, with μ².
        identity_mix: in [0, 1).
        name: see `Transform`.
    """

    allowed: ClassVar = {
        "meta_lr_scale": "[0, inf)",
        "betas": ("(0, 1)", "(0, 1)"),
        "eps": "[0, inf)",
        "lr_est_period": "[1, inf)" + WHOLE,
        "max_step_scale": "(0, inf)",
        "max_full_dim": "[0, inf)" + WHOLE,
        "identity_mix": "[0, 1)",
    }

    def __init__(
        self,
        meta_lr_scale: float,
        betas: tuple[float, float],
        eps: float,
        lr_est_period: int,
        max_step_scale: float,
        max_full_dim: int,
        meta_norm: str,
        identity_mix: float,
        *,
        name: str = "",
    ) -> None:
        options = {"meta_lr_scale": meta_lr_scale, "betas": betas, "eps": eps, "lr_est_period": lr_est_period}
        options |= {"max_step_scale": max_step_scale, "max_full_dim": max_full_dim, "meta_norm": meta_norm}
        super().__init__(name=name, **options, identity_mix=identity_mix)

    def check(self, group: Group) -> None:
        """Refuse a norm that does not exist."""
        if group["meta_norm"] not in META_NORMS:
            raise ValueError(f"meta_norm must be one of {', '.join(META_NORMS)}, given {group['meta_norm']!r}")

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return averages of zero, and unit matrices."""
        state: State = {"exp_avg": zeros(param)}
        if param.numel() <= SMALL:
            return {**state, "exp_avg_sq": zeros(param)}
        for axis, size in enumerate(param.shape):
            if size in (1, param.numel()):
                continue
            one = param.new_ones(size, dtype=state_dtype(param))
            state[f"matrix_{axis}"] = one.diag() if size <= group["max_full_dim"] else one
            state[f"covariance_{axis}"] = torch.zeros_like(state[f"matrix_{axis}"])
        return state

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the step."""
        (beta1, beta2), grad, average = batch.group["betas"], update.value(), batch.state["exp_avg"]
        size: Scalar = batch.read(batch.state["param_rms"]) if batch.numel > 1 else 1.0
        if batch.numel <= SMALL:
            average.lerp_(grad, 1 - beta1)
            v = batch.state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            root = (batch.mean(v) / (1 - beta2**batch.step)) ** 0.5 + batch.group["eps"]
            return Update(average, size / root * batch.group["lr"])
        axes = [axis for axis in range(-len(batch.shape), 0) if _key("matrix", axis, batch) in batch.state]
        if (batch.step - 1) % batch.group["lr_est_period"] == 0:
            learn(grad, axes, batch)
        average.lerp_(grad, 1 - beta1)
        direction = transformed(average, axes, batch)
        rms = batch.rms(direction) + batch.group["eps"]
        limit = rms * batch.group["max_step_scale"]
        if direction is average:
            direction = direction.clone()
        direction.clamp_(-limit, limit)
        return Update(direction, size * batch.group["lr"] * ((1 - beta1) / (1 + beta1)) ** 0.5 / rms, free=True)


def _key(what: str, axis: int, batch: Batch) -> str:
    return f"{what}_{axis + len(batch.shape)}"


def transformed(x: Tensor, axes: list[int], batch: Batch, what: str = "matrix", but: int | None = None) -> Tensor:
    """Return x multiplied by the matrices of all axes but one."""
    for axis in axes:
        if axis != but:
            x = multiplied(x, batch.state[_key(what, axis, batch)], axis, batch.stacked)
    return x


def learn(grad: Tensor, axes: list[int], batch: Batch) -> None:
    """Take a gradient into the covariances, and let it improve the matrices."""
    for axis in axes:
        covariance = batch.state[_key("covariance", axis, batch)]
        covariance.mul_(batch.group["betas"][1]).add_(_inner(grad, grad, axis, covariance, batch))
    if batch.step == 1 or not axes:
        return  # nothing was averaged yet
    derivative = meta_gradient(grad, axes, batch)
    moved = {axis: _moved(axis, derivative, batch) for axis in axes} if derivative is not None else {}
    for axis, matrix in moved.items():
        old = batch.state[_key("matrix", axis, batch)]
        finite = matrix.isfinite().flatten(1).all(1) if batch.stacked else matrix.isfinite().all()
        kept = finite.reshape([-1, *[1] * (old.dim() - 1)]) if batch.stacked else finite
        old.copy_(torch.where(kept, matrix, old))


def meta_gradient(grad: Tensor, axes: list[int], batch: Batch) -> Tensor | None:
    """Return h, the derivative of J by d; None where it is known that there is none.

    Where it cannot be read at no cost, h holds NaN in its place.
    """
    direction = transformed(batch.state["exp_avg"], axes, batch)
    covered = direction
    for axis in axes:
        covariance = batch.state[_key("covariance", axis, batch)]
        diagonal = covariance if covariance.dim() - batch.stacked == 1 else covariance.diagonal(dim1=-2, dim2=-1)
        mean = diagonal.mean(-1, keepdim=True).add_(TINY)
        scaled = covariance / (mean if diagonal is covariance else mean.unsqueeze(-1))
        covered = multiplied(covered, scaled, axis, batch.stacked)
    square = batch.dot(direction, covered) / batch.numel
    if isinstance(square, Tensor):
        square = torch.where(square > 0, square, torch.nan)
    elif not 0 < square < float("inf"):
        return None
    root = square**0.5
    along_direction = batch.dot(grad, direction) / (square * root * batch.numel)
    return grad / root - covered * along_direction


def _inner(first: Tensor, second: Tensor, axis: int, like: Tensor, batch: Batch) -> Tensor:
    """Return the products of all pairs of slices along an axis; of equal ones only where ``like`` is a diagonal."""
    a, b = unfolded(first, axis, batch.stacked), unfolded(second, axis, batch.stacked)
    return (a * b).sum(-2) if like.dim() - batch.stacked == 1 else a.mT @ b


def _moved(axis: int, derivative: Tensor, batch: Batch) -> Tensor:
    """Return M_k after one step along D_k."""
    group, matrix = batch.group, batch.state[_key("matrix", axis, batch)]
    axes = [other for other in range(-len(batch.shape), 0) if _key("matrix", other, batch) in batch.state]
    rest = transformed(batch.state["exp_avg"], axes, batch, but=axis)
    slope = _inner(derivative, rest, axis, matrix, batch)
    full = matrix.dim() - batch.stacked == 2
    step = 0.5 * (slope + slope.mT) @ matrix if full else slope * matrix
    inner_axes = (-2, -1) if full else (-1,)
    step = step * (_meta_scale(group) / (_length(step, inner_axes, group["meta_norm"]) + TINY))
    if full:
        step.diagonal(dim1=-2, dim2=-1).add_(1)
        new = step @ matrix @ step.mT
        new = new + new.mT
        new = new / new.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        one = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    else:
        new = matrix * (1 + step) ** 2
        new = new / new.mean(-1, keepdim=True)
        one = torch.ones_like(matrix)
    mix = group["identity_mix"]
    return torch.lerp(new, one.expand_as(new), mix) if mix else new


def _meta_scale(group: Group) -> float | Tensor:
    scale: float | Tensor = group["lr"] * group["meta_lr_scale"]
    return scale * scale if group["meta_norm"] == "rms_squared" else scale


def _length(step: Tensor, axes: tuple[int, ...], norm: str) -> Tensor:
    squares = step.square().sum(axes, keepdim=True)
    count = 1
    for axis in axes:
        count *= step.shape[axis]
    return (squares if norm == "frobenius" else squares / count).sqrt()
