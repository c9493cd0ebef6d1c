"""Cain: Adam whose steps are relative to the size of each row and column, and which learns a tensor's size too."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from optim.chain import Chain
from optim.transforms.axis_sizes import AxisSizes
from optim.transforms.change_momentum import ChangeMomentum
from optim.transforms.clamp import Clamp
from optim.transforms.fading_rms import FadingRms
from optim.transforms.tensor_scale import TensorScale


class Cain(Chain):
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
        skip_nonfinite: see `Chain`.
        quirks: ignore ``scale_speed`` and use 0.05, as the reference does.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        icefall, egs/librispeech/ASR/pruned_transducer_stateless7/optim.py at commit 41368f6b6, class Cain; no paper.
        Differs: ``scale_speed`` is honoured; P is kept as its factors, not as a tensor.
    """

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
        skip_nonfinite: bool = False,
        quirks: bool = False,
    ) -> None:
        transforms = [
            FadingRms(betas, eps),
            AxisSizes(rms_eps),
            TensorScale(betas, eps, scale_speed, quirks),
            ChangeMomentum(betas),
            Clamp(param_max),
        ]
        super().__init__(params, transforms, lr=lr, maximize=maximize, skip_nonfinite=skip_nonfinite)
