"""The size of a whole tensor, learned as if it were the exponential of a parameter of its own."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.engine.batch import Group, ParamBatch, Scalar, State, Update, at_least, state_dtype, zero_per_axes
from optim.engine.transform import Transform

PERIOD = 4  # steps between two changes of a size


class LogSize(Transform):
    """Grows or shrinks the parameter itself every fourth step; the gradient passes unchanged.

    At the parameter's own step t = 0, 1, …, of more than one element, q[t mod 4] = ⟨p, g⟩. If t mod 4 = 3, with
    b_i = β_i⁴ and r̂ = rms(p):

        v ← b₂ v + (1 − b₂) mean(q²),   m ← b₁ m + (1 − b₁) mean(q)
        s = −4 lr size_lr_scale · √(1 − b₂^((t+1)/4)) · m/(√v + 10⁻¹⁰)
        s = +4 lr size_lr_scale  if r̂ < param_min_rms,   −4 lr size_lr_scale  if r̂ > param_max_rms
        r ← max(r̂, param_min_rms),   p ← p (1 + s)

    State: q (``scale_grads``), m and v (``scale_exp_avg``, ``scale_exp_avg_sq``), r (``param_rms``), which starts at
    max(rms(p), param_min_rms).
    """

    allowed: ClassVar = {
        "size_lr_scale": "[0, inf)",
        "betas": ("(0, 1)", "(0, 1)"),
        "param_min_rms": "(0, inf)",
        "param_max_rms": "(0, inf)",
    }

    def check(self, group: Group) -> None:
        """Refuse an empty range of sizes, and averages of the wrong order."""
        if group["param_max_rms"] < group["param_min_rms"]:
            raise ValueError(
                f"param_max_rms must be at least param_min_rms, given {group['param_max_rms']!r} and "
                f"{group['param_min_rms']!r}"
            )
        if not group["betas"][0] <= group["betas"][1]:
            raise ValueError(f"betas must rise, 0 < beta1 <= beta2 < 1, given {group['betas']!r}")

    def new_state(self, param: Tensor, group: Group, stacking_key: Hashable) -> State:
        """Return the parameter's size, and derivatives of zero."""
        if param.numel() <= 1:
            return {}
        rms = torch.linalg.vector_norm(param.detach(), dtype=state_dtype(param)) / param.numel() ** 0.5
        return {
            "param_rms": rms.clamp(min=group["param_min_rms"]).reshape([1] * param.dim()),
            "scale_grads": param.new_zeros(PERIOD, dtype=state_dtype(param)),
            "scale_exp_avg": zero_per_axes(param, ()),
            "scale_exp_avg_sq": zero_per_axes(param, ()),
        }

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update unchanged; change the size of the parameters if it is due."""
        if batch.numel > 1:
            # one derivative per step; at the fourth, all of them change the size at once
            slot = (batch.step - 1) % PERIOD
            derivative = batch.dot(batch.param, batch.grad)
            # a view: the last axis holds the four, also of a stack
            place = batch.state["scale_grads"].select(-1, slot)
            place.copy_(derivative.reshape(place.shape)) if isinstance(derivative, Tensor) else place.fill_(derivative)
            if slot == PERIOD - 1:
                _grow(batch)
        return update


def _grow(batch: ParamBatch) -> None:
    group, state = batch.group, batch.state
    rms = batch.rms(batch.param)
    speed = PERIOD * group["size_lr_scale"] * group["lr"]
    step = _learned_step(batch)
    # beyond the limits the full speed, whatever has been learned
    if isinstance(rms, Tensor):
        step = torch.where(rms < group["param_min_rms"], 1.0, step)
        step = torch.where(rms > group["param_max_rms"], -1.0, step)
        state["param_rms"].copy_(rms.clamp(min=group["param_min_rms"]).reshape(state["param_rms"].shape))
    else:
        step = 1.0 if rms < group["param_min_rms"] else -1.0 if rms > group["param_max_rms"] else step
        state["param_rms"].fill_(at_least(rms, group["param_min_rms"]))
    batch.param.mul_(1 + speed * step)


def _learned_step(batch: ParamBatch) -> Scalar:
    """Return the step of the size in units of its speed."""
    state, (beta1, beta2) = batch.state, (beta**PERIOD for beta in batch.group["betas"])
    # one update for four steps: the decays are those of four
    derivatives = state["scale_grads"]
    shape = state["scale_exp_avg"].shape
    state["scale_exp_avg_sq"].lerp_(derivatives.square().mean(-1).reshape(shape), 1 - beta2)
    state["scale_exp_avg"].lerp_(derivatives.mean(-1).reshape(shape), 1 - beta1)
    corrected = (1 - beta2 ** (batch.step // PERIOD)) ** 0.5
    root = batch.read(state["scale_exp_avg_sq"]) ** 0.5 + 1e-10
    return batch.read(state["scale_exp_avg"]) / root * -corrected
