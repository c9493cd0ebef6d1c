"""Gradients multiplied on each axis by a matrix that is learned, and steps of a fixed length."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor

from optim.engine.options import WHOLE
from optim.engine.param_batch import (
    ForeachBatch,
    Group,
    ParamBatch,
    Scalar,
    State,
    TensorList,
    Update,
    state_dtype,
    zeros,
)
from optim.engine.transform import Transform
from optim.learned_gradient.axis_matrices import META_NORMS, learn, learned_axes, transformed

SMALL = 5  # elements up to which a tensor has no matrices


class LearnedAxes(Transform):
    """The averaged gradient, multiplied on each axis k by a learned symmetric positive definite matrix M_k.

    At the parameter's own step t = 0, 1, …; ``x ×_k M`` multiplies x by M along axis k, ``G_(k)`` unfolds g along it.
    Axes are learned unless their size is 1 or that of the whole tensor; above ``max_full_dim``, M_k and C_k are
    diagonal. Every ``lr_est_period`` steps, with ḡ as it was after the previous step and μ = lr · meta_lr_scale:

        C_k ← β₂ C_k + G_(k) G_(k)ᵀ
        d = ḡ ×₁ M₁ ×₂ M₂ …,   c = d ×₁ C₁/mean(diag C₁) ×₂ …,   r = √mean(d c)
        h = g/r − ⟨g, d⟩/(r³ N) · c                      the derivative by d of J = ⟨g, d⟩/r
        D_k = h_(k) (ḡ ×_{j≠k} M_j)_(k)ᵀ,   S_k = ½ (D_k + D_kᵀ) M_k,   A_k = I + μ S_k/‖S_k‖
        M_k ← A_k M_k A_kᵀ, over its mean diagonal;   M_k ← (1 − identity_mix) M_k + identity_mix I

    If r is not finite and positive, as before any gradient, M stays; so does an M_k that would not be finite.
    Every step:

        ḡ ← β₁ ḡ + (1 − β₁) g,   d = ḡ ×₁ M₁ ×₂ M₂ …,   ρ = rms(d) + eps
        u = lr · r_p · √((1 − β₁)/(1 + β₁)) · clip(d, ±max_step_scale ρ)/ρ         r_p: ``param_rms`` of `LogSize`

    Tensors of up to 5 elements: v ← β₂ v + (1 − β₂) g², u = lr · r_p · ḡ/(√(mean(v)/(1 − β₂ᵗ⁺¹)) + eps), with r_p = 1
    for a single element.

    The matrices of tensors of less than 4096 elements are learned in float64, if the device has it, and kept in the
    state's dtype. A ``capturable`` optimizer computes in every step what only those of the period use.

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
    """

    allowed: ClassVar = {
        "meta_lr_scale": "[0, inf)",
        "betas": ("(0, 1)", "(0, 1)"),
        "eps": "[0, inf)",
        "lr_est_period": "[1, inf)" + WHOLE,
        "max_step_scale": "(0, inf)",
        "max_full_dim": "[0, inf)" + WHOLE,
        "meta_norm": [*META_NORMS],
        "identity_mix": "[0, 1)",
    }
    foreach = True

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return averages of zero (*shape), unit matrices and covariances of zero (n, n), or their diagonals (n)."""
        state: State = {"exp_avg": zeros(param, group)}
        if param.numel() <= SMALL:
            return {**state, "exp_avg_sq": zeros(param, group)}
        for axis, size in enumerate(param.shape):
            if size in (1, param.numel()):
                continue
            # a vector stands for a diagonal matrix: n² floats of a long axis would exceed the parameter itself
            one = param.new_ones(size, dtype=state_dtype(param))
            state[f"matrix_{axis}"] = one.diag() if size <= group["max_full_dim"] else one
            state[f"covariance_{axis}"] = torch.zeros_like(state[f"matrix_{axis}"])
        return state

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the step."""
        (beta1, beta2), grad, average = batch.group["betas"], update.value(), batch.state["exp_avg"]
        size: Scalar = 1.0 if batch.single_element else batch.read(batch.state["param_rms"])
        if "exp_avg_sq" in batch.state:
            average.lerp_(grad, 1 - beta1)
            v = batch.state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            root = (batch.mean(v) / (1 - beta2**batch.step)) ** 0.5 + batch.group["eps"]
            return Update(average, size / root * batch.group["lr"])
        due = (batch.step - 1) % batch.group["lr_est_period"] == 0
        # before the average takes this gradient: the matrices are judged by the step that the old average made
        for part, g in _parts(batch, grad) if due is not False else ():
            learn(g, learned_axes(part), part, due)
        average.lerp_(grad, 1 - beta1)
        directions = [_direction(part, m) for part, m in _parts(batch, average)]
        direction = batch.joined(directions) if isinstance(batch, ForeachBatch) else directions[0]
        rms = batch.rms(direction) + batch.group["eps"]
        limit = rms * batch.group["max_step_scale"]
        direction.clamp_(-limit, limit)
        return Update(direction, size * batch.group["lr"] * ((1 - beta1) / (1 + beta1)) ** 0.5 / rms, overwritable=True)


def _parts(batch: ParamBatch, x: Tensor) -> list[tuple[ParamBatch, Tensor]]:
    """Return every stack, or parameter alone, with its part of x: products have one shape."""
    return (
        list(zip(batch.parts, cast(TensorList, x).tensors, strict=True))
        if isinstance(batch, ForeachBatch)
        else [(batch, x)]
    )


def _direction(batch: ParamBatch, average: Tensor) -> Tensor:
    direction = transformed(average, learned_axes(batch), batch)
    # without a learned axis nothing has made a new tensor, and clamp_ would write to the statistic
    return direction.clone() if direction is average else direction
