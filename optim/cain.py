"""Cain: Adam whose steps are relative to the size of each row and column, and which learns a tensor's size too."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from optim.options import SWITCH
from optim.step_loop import Group, State, StepLoop, state_dtype, zeros

CLAMP_EVERY = 10  # steps between two clamps of the parameter
REFRESH_EVERY = 1000  # steps after which the sizes are estimated anew
SEED_SCALE_SPEED = 0.05  # what the reference uses, whatever it is asked for


class Cain(StepLoop):
    """Adam in units of the parameter's own rows and columns, with momentum on the parameter's change.

    For a parameter p of N elements with gradient g at its own step k = 0, 1, …:

        δ ← β₁ δ
        N > 1:  D = ⟨p, g⟩,   z ← β₂ z + (1 − β₂) D²
                δ ← δ − lr · scale_speed · (1 − β₁) √(1 − β₂ᵏ⁺¹) · D/(√z + eps) · p       (the size of the tensor)
                v ← β₂ v + (1 − β₂) g²
                δ ← δ − lr (1 − β₁)(1 − β₂ᵏ) · g/(√v + eps) ⊙ P                            (its direction)
        N = 1:  v likewise;   δ ← δ − lr (1 − β₁) √(1 − β₂ᵏ) · g/(√v + eps)
        p ← p + δ;   every tenth step p is clamped to ±param_max

    P is the estimated size of each element: a product of one factor per axis. At k mod 1000 = 0 it starts from 1 and
    every axis is fitted in order, else axis k mod ndim: with q = max(p², rms_eps²)/P², the factor of the axis is
    multiplied by √(mean of q over all other axes), or by √(mean of q) where N ≤ 2 · size of the axis.

    Everything is multiplicative in p: tensors that start at zero need hundreds of steps to leave it.

    State: δ (``delta``), v (``exp_avg_sq``), z (``scale_exp_avg_sq``), and P as its factors (``size_<axis>``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate relative to the parameter's size, at least 0; a 0-dimensional tensor is allowed.
        betas: decay of the momentum and of the averages of squares, each in [0, 1).
        eps: added to the roots, at least 0.
        scale_speed: how fast the size of a tensor is learnt, relative to its direction, in (0, 1).
        rms_eps: floor of the estimated sizes, in (0, 0.1).
        param_max: clamp of the parameter, in (0.1, 1e4]; between two clamps it may be exceeded.
        maximize: ascend instead of descend.
        quirks: ignore ``scale_speed`` and use 0.05, as the reference does.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        icefall, egs/librispeech/ASR/pruned_transducer_stateless7/optim.py at commit 41368f6b6, class Cain; no paper.
        Differs: ``scale_speed`` is honoured; P is kept as its factors, not as a tensor.
    """

    allowed: ClassVar = {
        "lr": "[0, inf)",
        "betas": ("[0, 1)", "[0, 1)"),
        "eps": "[0, inf)",
        "scale_speed": "(0, 1)",
        "rms_eps": "(0, 0.1)",
        "param_max": "(0.1, 1e4]",
        "quirks": SWITCH,
    }

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        scale_speed: float = 0.05,
        rms_eps: float = 1e-5,
        param_max: float = 20.0,
        *,
        maximize: bool = False,
        quirks: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "scale_speed": scale_speed, "rms_eps": rms_eps}
        super().__init__(params, {**options, "param_max": param_max, "maximize": maximize, "quirks": quirks})

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return zero momentum and averages, and sizes of one."""
        state: State = {"delta": zeros(param), "exp_avg_sq": zeros(param)}
        if param.numel() > 1:
            dtype = state_dtype(param)
            state["scale_exp_avg_sq"] = param.new_zeros((), dtype=dtype)
            for axis, size in enumerate(param.shape):
                shape = [size if i == axis else 1 for i in range(param.dim())]
                state[f"size_{axis}"] = param.new_ones(shape, dtype=dtype)
        return state

    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Apply the equations of the class's docstring."""
        (beta1, beta2), k, eps = group["betas"], state["step"] - 1, group["eps"]
        lr = group["lr"] * (1 - beta1)
        delta: Tensor = state["delta"].mul_(beta1)
        correction = (1 - beta2**k) ** 0.5
        if param.numel() > 1:
            delta.sub_(lr * self._scale_change(param, grad, state, group) * param)
            correction = correction**2  # the reference takes no root here
        second_moment: Tensor = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        direction = grad / second_moment.sqrt().add_(eps)
        if param.numel() > 1:
            fit_sizes(param, state, group["rms_eps"], k)
            for axis in range(param.dim()):
                direction.mul_(state[f"size_{axis}"])
        delta.sub_(direction.mul_(lr * correction))
        param.add_(delta)
        if k % CLAMP_EVERY == 0:
            param.clamp_(-group["param_max"], group["param_max"])

    def _scale_change(self, param: Tensor, grad: Tensor, state: State, group: Group) -> Tensor:
        """Return the step of the tensor's size, in Adam's way: its derivative over the root of its averaged square."""
        beta2 = group["betas"][1]
        derivative = (param * grad).sum()
        average: Tensor = state["scale_exp_avg_sq"].mul_(beta2).addcmul_(derivative, derivative, value=1 - beta2)
        speed = SEED_SCALE_SPEED if group["quirks"] else group["scale_speed"]
        return derivative / (average.sqrt() + group["eps"]) * (speed * (1 - beta2 ** state["step"]) ** 0.5)


def fit_sizes(param: Tensor, state: State, floor: float, step: int) -> None:
    """Update the factors of the estimated sizes: one axis per step, all from scratch where a refresh is due."""
    axes = [step % param.dim()]
    if step % REFRESH_EVERY == 0:
        axes = list(range(param.dim()))
        for axis in axes:
            state[f"size_{axis}"].fill_(1)
    square = (param * param).clamp_(min=floor * floor)
    for axis in axes:
        ratio = square
        for other in range(param.dim()):
            ratio = ratio / state[f"size_{other}"].square()
        others = [i for i in range(param.dim()) if i != axis]
        # few elements per index: the mean over all of them is the safer estimate
        pooled = param.numel() <= 2 * param.shape[axis]
        mean = ratio.mean() if pooled else torch.mean(ratio, dim=others, keepdim=True)
        state[f"size_{axis}"].mul_(mean.sqrt())
