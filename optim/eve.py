"""Eve: Adam that shrinks a tensor only while it is larger than a target size."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from optim.chain import Chain
from optim.transforms.adam import FusedAdam
from optim.transforms.shrink_above import ShrinkAbove


class Eve(Chain):
    """Adam whose weight decay stops where a tensor's RMS has come down to ``target_rms``.

    Made for networks that hardly depend on the scale of their matrices. For a parameter p of N elements with
    gradient g at its own step t = 1, 2, …, with rms(p) = ‖p‖₂/√N:

        p ← p (1 − weight_decay)     if N > 1 and rms(p) > target_rms         `ShrinkAbove`
        m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²                       `FusedAdam`
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
        skip_nonfinite: see `Chain`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        icefall, egs/librispeech/ASR/pruned_transducer_stateless2/optim.py, class Eve (Povey 2022, no paper).
        Differs: never logs nor draws random numbers; the decay is not rounded to float32 in float64.
    """

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
        skip_nonfinite: bool = False,
    ) -> None:
        transforms = [ShrinkAbove(weight_decay, target_rms), FusedAdam(betas, eps)]
        super().__init__(params, transforms, lr=lr, maximize=maximize, skip_nonfinite=skip_nonfinite)
