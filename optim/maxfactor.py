"""MaxFactor: factored second moments, normalised by their maximum, and one step length per row."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from optim.chain import Chain
from optim.transforms.bounded_relative_step import BoundedRelativeStep
from optim.transforms.max_factored import MaxFactoredRows


class MaxFactor(Chain):
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
        skip_nonfinite: see `Chain`.
        quirks: do what the reference does to parameters of less than two axes: square the gradient before it is the
            direction, so that they always decrease, and keep the normalised update in place of v.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        github.com/sine2pi/Maxfactor, README; no paper.
        Differs: steps every group (the reference only the first); keeps no second moment that it does not use; state in
        float32 for half precision, else in the parameter's type; never waits for the device.
    """

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
        skip_nonfinite: bool = False,
        quirks: bool = False,
    ) -> None:
        transforms = [
            MaxFactoredRows(beta2_decay=beta2_decay, gamma=gamma, eps=eps, d=d, max_norm=max_norm, quirks=quirks),
            BoundedRelativeStep(eps, weight_decay, min_lr, scalar_boost),
        ]
        super().__init__(params, transforms, lr=lr, maximize=maximize, skip_nonfinite=skip_nonfinite)

    def _get_lr(self) -> dict[int, float]:
        """Return each group's lr by the group's place, as the reference does."""
        return {place: float(group["lr"]) for place, group in enumerate(self.param_groups)}
