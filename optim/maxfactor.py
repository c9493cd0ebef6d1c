"""MaxFactor: factored second moments, normalised by their maximum, and one step length per row."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from optim.options import SWITCH
from optim.step_loop import Group, State, StepLoop, state_dtype, zeros


class MaxFactor(StepLoop):
    """Moves every element of a matrix's row by the row's largest normalised gradient, against the gradient's sign.

    For a parameter p of N elements with gradient g at its own step t = 1, 2, …, with rms(x) = ‖x‖₂/√N:

        w = clamp(t^beta2_decay, 0.001, 0.999)
        ρ = max(min_lr, min(lr, 1/√t)),   α = max(eps₂, rms(p)) ρ          (p before decay)
        p ← p (1 − lr · weight_decay)
        matrices:  R ← R + w (Σ_columns g²/(m + eps₁) − R),   C ← C + w (Σ_rows g²/(n + eps₁) − C),   V = R C / max R
        others:    v ← γ v + (1 − γ) g²,   V = v
        N = 1:     p ← p − α · scalar_boost · g/(√V + eps₁)
        else:      u = g/√max(V, eps₁²),   u ← u/max(max|u|, eps₁),   D = max(1, rms(u)/d)
                   matrices:  p ← p − α/D · sign(u) ⊙ max over the row of |u|
                   others:    p ← p − α/D · u

    A matrix is what has two axes or more; the last two are rows and columns, others are a batch. ``max_norm=False``
    leaves out both maxima. At the default d = 1 the clipping by D never acts, for u is at most 1.

    State: R (``row``) and C (``col``) of a matrix, v (``exp_avg_sq``) of anything else; matrices have no full average.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: upper bound of the relative step ρ, and the factor of weight decay; a 0-dimensional tensor is allowed.
        beta2_decay: exponent of the weight of the newest sample, at most 0.
        eps: floor of statistics, and floor of rms(p).
        d: rms of the normalised update above which it is scaled down.
        weight_decay: times lr, the fraction taken off per step.
        gamma: decay of v.
        max_norm: divide by the row maximum, and move a row as one.
        min_lr: lower bound of ρ.
        scalar_boost: factor of the step of single elements.
        maximize: ascend instead of descend.
        quirks: do what the reference does to parameters of less than two axes: square the gradient before it is the
            direction, so that they always decrease, and keep the normalised update in place of v.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        github.com/sine2pi/Maxfactor, README; no paper.
        Differs: steps every group (the reference only the first); keeps no second moment that it does not use; state in
        float32 for half precision, else in the parameter's type; never waits for the device.
    """

    allowed: ClassVar = {
        "lr": "[0, inf)",
        "beta2_decay": "(-inf, 0]",
        "eps": ("(0, inf)", "[0, inf)"),
        "d": "(0, inf)",
        "weight_decay": "[0, inf)",
        "gamma": "[0, 1)",
        "min_lr": "[0, inf)",
        "scalar_boost": "(0, inf)",
        "max_norm": SWITCH,
        "quirks": SWITCH,
    }

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.01,
        beta2_decay: float = -0.8,
        eps: tuple[float, float] = (1e-10, 1e-4),
        d: float = 1.0,
        weight_decay: float = 0.01,
        gamma: float = 0.99,
        max_norm: bool = True,
        min_lr: float = 1e-7,
        scalar_boost: float = 2.0,
        *,
        maximize: bool = False,
        quirks: bool = False,
    ) -> None:
        options = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        options |= {"gamma": gamma, "max_norm": max_norm, "min_lr": min_lr, "scalar_boost": scalar_boost}
        super().__init__(params, {**options, "maximize": maximize, "quirks": quirks})

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return zero statistics: R and C of a matrix, v of anything else."""
        if param.dim() < 2:
            return {"exp_avg_sq": zeros(param)}
        row, col = (*param.shape[:-1], 1), (*param.shape[:-2], 1, param.shape[-1])
        return {
            "row": param.new_zeros(row, dtype=state_dtype(param)),
            "col": param.new_zeros(col, dtype=state_dtype(param)),
        }

    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Apply the equations of the class's docstring."""
        alpha = relative_step(param, group, state["step"])
        if group["weight_decay"] > 0:
            param.mul_(1 - group["lr"] * group["weight_decay"])
        second_moment = self._second_moment(grad, state, group)
        if group["quirks"] and param.dim() < 2:
            grad = grad * grad
        if param.numel() == 1:
            param.sub_(alpha * group["scalar_boost"] * grad / (second_moment.sqrt() + group["eps"][0]))
        elif param.numel() > 1:
            update = self._normalised(grad, second_moment, state, group)
            shrink = (torch.linalg.vector_norm(update) / (update.numel() ** 0.5 * group["d"])).clamp_(min=1)
            if param.dim() > 1 and group["max_norm"]:
                update = update.sign().mul_(update.abs().amax(dim=-1, keepdim=True))
            param.sub_(update.mul_(alpha / shrink))

    def _second_moment(self, grad: Tensor, state: State, group: Group) -> Tensor:
        square, eps = grad * grad, group["eps"][0]
        if grad.dim() < 2:
            average: Tensor = state["exp_avg_sq"]
            return average.mul_(group["gamma"]).add_(square, alpha=1 - group["gamma"]).clone()
        weight = min(0.999, max(0.001, state["step"] ** group["beta2_decay"]))
        row: Tensor = state["row"].lerp_(square.sum(-1, keepdim=True) / (grad.shape[-1] + eps), weight)
        col: Tensor = state["col"].lerp_(square.sum(-2, keepdim=True) / (grad.shape[-2] + eps), weight)
        if group["max_norm"] and row.numel():
            row = row / row.amax(dim=-2, keepdim=True).clamp_(min=eps)
        return row * col

    def _normalised(self, grad: Tensor, second_moment: Tensor, state: State, group: Group) -> Tensor:
        eps = group["eps"][0]
        update = grad / second_moment.clamp_(min=eps * eps).sqrt_()
        # where every element is zero, zero over eps is still zero
        update.div_(update.abs().amax().clamp_(min=eps))
        if group["quirks"] and grad.dim() < 2:
            state["exp_avg_sq"].copy_(update)
        return update


def relative_step(param: Tensor, group: Group, step: int) -> Tensor:
    """Return α: the parameter's own size, times a step that is bounded by lr and by 1/√t."""
    size = (torch.linalg.vector_norm(param) / (param.numel() ** 0.5 + 1e-12)).clamp_(min=group["eps"][1])
    lr, latest = group["lr"], step**-0.5
    if isinstance(lr, Tensor):
        return size * lr.clamp(max=latest).clamp_(min=group["min_lr"])
    return size * max(group["min_lr"], min(lr, latest))
