"""ScaledAdam: Adam whose steps are relative to the size of each tensor, and which learns that size too."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from optim.chain import Chain
from optim.transforms.clamp_scalars import ClampScalars
from optim.transforms.clip_by_median_norm import ClipByMedianNorm
from optim.transforms.learn_size import LearnSize
from optim.transforms.scaled_change import ScaledChange
from optim.transforms.tensor_size import TensorSize


class ScaledAdam(Chain):
    """Adam in units of the parameter's size, with momentum on the parameter's change.

    For a parameter p of N elements with gradient g at step t = 1, 2, …, with rms(x) = √(mean of x²):

        g ← min(1, T/‖w g‖) g                          norm over the group          `ClipByMedianNorm`

        N > 1, in periods of P = size_update_period steps:                         `TensorSize`
        D = ⟨p, g⟩,   S = sum of D in this period,   z ← β₂ᴾ z + (1 − β₂ᴾ) mean of D² in this period
        r = rms(p)                                     at t = 1, and at the end of every period

        v ← β₂ v + (1 − β₂) g²,   c = 1 − β₂ᵗ where that is below 0.99, else 1     `ScaledChange`
        a = max(r, param_min_rms),   or scalar_lr_scale where N = 1
        δ ← β₁ δ − (1 − β₁) lr · a · g/(√(v/c) + eps)

        N > 1, at the end of every period:                                         `LearnSize`
        s = −lr · scalar_lr_scale · √(1 − β₂ᵗ) · S/(√z + eps)                      0 where r < param_min_rms
        δ ← δ + (1 − β₁) min(clamp(s, ±0.1), (param_max_rms − r)/r) p

        p ← p + δ;   clamped to ±scalar_max where N = 1                            `ClampScalars`

    T is clipping_scale times the median of the norms of the last clipping_update_period steps, where w is r, or
    scalar_lr_scale where N = 1; first estimates, of twice that, come after 10, 20 and 40 steps. A gradient that is None
    counts as zero.

    State: δ (``delta``), v (``exp_avg_sq``), r (``param_rms``), S (``scale_grad``) and z (``scale_exp_avg_sq``); of
    each group the recent norms and T.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate relative to the parameter's size, at least 0; a 0-dimensional tensor is allowed.
        clipping_scale: how many times the median norm a gradient may be, above 0; None for no clipping.
        betas: decay of the momentum and of the averages of squares, each in [0, 1).
        scalar_lr_scale: of lr, what single elements and the sizes of tensors are learnt with, at least 0.
        eps: added to the roots, at least 0.
        param_min_rms: floor of the size that steps are relative to, at least 0.
        param_max_rms: size above which a tensor is shrunk, above 0.
        scalar_max: bound of single elements, above 0.
        size_update_period: steps between updates of the size, at least 1.
        clipping_update_period: steps between estimates of the median, at least 1.
        maximize: ascend instead of descend.
        skip_nonfinite: see `Chain`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.
        RuntimeError: about half of the recent norms were not finite, in a step on a CPU with clipping; for other
            devices see `ClipByMedianNorm`.

    Reference:
        icefall, egs/librispeech/ASR/zipformer/optim.py, class ScaledAdam; Yao et al. 2024, "Zipformer",
        arXiv:2310.11230.
        Differs: gradients are not modified where they are clipped; nothing is logged, and nothing waits for the device;
        statistics of float64 parameters are float64.
    """

    missing_gradients_are_zero: ClassVar = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 3e-2,
        clipping_scale: float | None = None,
        betas: tuple[float, float] = (0.9, 0.98),
        scalar_lr_scale: float = 0.1,
        eps: float = 1e-8,
        param_min_rms: float = 1e-5,
        param_max_rms: float = 3.0,
        scalar_max: float = 10.0,
        size_update_period: int = 4,
        clipping_update_period: int = 100,
        *,
        maximize: bool = False,
        skip_nonfinite: bool = False,
    ) -> None:
        transforms = [
            ClipByMedianNorm(clipping_scale, clipping_update_period, scalar_lr_scale),
            TensorSize(betas, size_update_period),
            ScaledChange(betas, eps, param_min_rms, scalar_lr_scale),
            LearnSize(betas, eps, scalar_lr_scale, param_min_rms, param_max_rms, size_update_period),
            ClampScalars(scalar_max),
        ]
        super().__init__(params, transforms, lr=lr, maximize=maximize, skip_nonfinite=skip_nonfinite)
