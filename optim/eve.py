"""Eve: Adam that shrinks a tensor only while it is larger than a target size."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from optim.step_loop import Group, State, StepLoop, zeros


class Eve(StepLoop):
    """Adam whose weight decay stops where a tensor's RMS has come down to ``target_rms``.

    Made for networks that hardly depend on the scale of their matrices. For a parameter p of N elements with
    gradient g at its own step t = 1, 2, …, with rms(p) = ‖p‖₂/√N:

        m ← β₁ m + (1 − β₁) g
        v ← β₂ v + (1 − β₂) g²
        p ← p (1 − weight_decay)     if N > 1 and rms(p) > target_rms
        p ← p − lr/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + eps)

    The decay is not multiplied by lr: a schedule does not anneal it.

    State: m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a 0-dimensional tensor is allowed.
        betas: decay of the averages of g and of g², each in [0, 1).
        eps: added to the root, at least 0.
        weight_decay: fraction taken off per step, in [0, 0.1].
        target_rms: in (0, 10].
        maximize: ascend instead of descend.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        icefall, egs/librispeech/ASR/pruned_transducer_stateless2/optim.py, class Eve (Povey 2022, no paper).
        Differs: never logs nor draws random numbers; the decay is not rounded to float32 in float64.
    """

    allowed: ClassVar = {
        "lr": "[0, inf)",
        "betas": ("[0, 1)", "[0, 1)"),
        "eps": "[0, inf)",
        "weight_decay": "[0, 0.1]",
        "target_rms": "(0, 10]",
    }

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 1e-3,
        target_rms: float = 0.1,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "target_rms": target_rms, "maximize": maximize})

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return the averages m and v, both zero."""
        return {"exp_avg": zeros(param), "exp_avg_sq": zeros(param)}

    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Apply the four lines of the class's docstring."""
        (beta1, beta2), t = group["betas"], state["step"]
        m = state["exp_avg"].lerp_(grad, 1 - beta1)
        v = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        shrink_above(param, group["target_rms"], group["weight_decay"])
        # m / (√v/c + eps) = c m / (√v + c eps) saves a pass over the tensor
        c = (1 - beta2**t) ** 0.5
        denominator = v.sqrt().add_(c * group["eps"])
        step_size = group["lr"] * c / (1 - beta1**t)
        if isinstance(step_size, Tensor):
            # as a number it would have to be fetched from the device
            denominator, step_size = denominator.div_(step_size), 1.0
        param.addcdiv_(m, denominator, value=-step_size)


def shrink_above(param: Tensor, target_rms: float, fraction: float) -> None:
    """Take a fraction off a tensor whose RMS is above a target; single elements are left alone."""
    if fraction > 0 and param.numel() > 1:
        too_large = torch.linalg.vector_norm(param) > target_rms * param.numel() ** 0.5
        # decided on the device; in the parameter's type, for bool times float has the default one
        param.mul_(1 - fraction * too_large.to(param.dtype))
