"""Prodigy with the options of the HeavyBall family: Adam that estimates its learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.engine.options import OR_NONE, SWITCH
from optim.engine.param_batch import Group, ParamBatch, ParamEntry, State, Update, copied, progress, shared_zero, zeros
from optim.engine.transform import Transform
from optim.transforms.adam import BETAS, average_squares, beta2_of
from optim.transforms.learning_rate import ESTIMATED_LR, estimate, scheduled_lr


class Prodigy(Composable):
    """Adam without a learning rate: the distance to the solution, estimated from the path so far, takes its place.

    The rule is `EstimatedDistance`. lr only scales the estimate and should stay 1; a schedule multiplies it. If steps
    turn out too long or too short, change ``d_coef``, between 0.5 and 2.

    Use: if nobody knows a rate; with `WarmupCosine` without warm-up, or with a short one and ``safeguard_warmup``.

    State: 16 bytes per float32 parameter: the averages m (``exp_avg``) and v (``exp_avg_sq``), the first value
    (``p0``), and the sum of weighted gradients (``s``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: factor of the estimate, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of g and of g², each in [0, 1).
        beta3: decay of the two sums of the estimate, in [0, 1); None for √betas[1].
        eps: added to the root, in units of the estimate, at least 0.
        use_bias_correction: multiply lr by Adam's correction of both averages.
        safeguard_warmup: leave lr out of the estimate's denominator, so that a warm-up does not inflate it.
        d0: first estimate, above 0; rarely needs another value.
        d_coef: factor of the estimate, above 0.
        growth_rate: most that the estimate may be multiplied by in a step, above 1; None for no limit.
        common: see `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Mishchenko and Defazio 2023, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner", arXiv:2306.06101,
        algorithm 4. The defaults are those of the authors' package prodigyopt 1.1.2.
        Differs: a group's own lr weighs its gradients, where the package refuses different rates; no ``slice_p``; a
        parameter whose first gradients come late takes part from then on.

    Examples:
        >>> param = nn.Parameter(torch.full((2,), 5.0))
        >>> optimizer = optim.Prodigy([param])
        >>> for _ in range(100):
        ...     param.grad = param.detach().clone()
        ...     optimizer.step()
        >>> optimizer.param_groups[0]["shared_state"]["d"] > 0.1  # from 1e-6
        tensor(True)
    """

    has_beta2: ClassVar = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        beta3: float | None = None,
        eps: float = 1e-8,
        use_bias_correction: bool = False,
        safeguard_warmup: bool = False,
        d0: float = 1e-6,
        d_coef: float = 1.0,
        growth_rate: float | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, [EstimatedDistance.of(locals())], lr=lr, **common)


class EstimatedDistance(Transform):
    """Adam's quotient, and an estimate d of the distance to the solution that `learning_rate` is multiplied by.

    Over all parameters of the optimizer, with the gradients g as they came, λ = d · lr and p₀ before the first step:

        r ← β₃ r + Σ d/d₀ λ ⟨g, p₀ − p⟩,   s ← β₃ s + d/d₀ λ g                 d in place of λ with ``safeguard_warmup``
        d' = max(d, d_coef · r/Σ ‖s‖₁)

    Then, with the old d for all but eps,

        m ← β₁ m + (1 − β₁) d u,   v ← β₂ v + (1 − β₂) d² u²,   u = m/(√v + d' eps)     times λ, which the decay has too

    With ``use_bias_correction`` λ is also multiplied by √(1 − β₂ᵗ)/(1 − β₁ᵗ). ``growth_rate`` limits d'/d. It,
    ``beta3`` and ``d_coef`` are those of the first group. The options are those of `Prodigy`.

    State: see `Prodigy`. State of a group: d (``d``), its largest value without that limit (``d_max``), the old d
    (``d_before``), r (``d_numerator``), and λ/lr (``estimated_lr``).

    Reference:
        Mishchenko and Defazio 2023, "Prodigy", arXiv:2306.06101, algorithm 4.
    """

    joins_parameters = True
    betas: Annotated[tuple[float, float], BETAS]
    beta3: Annotated[float | None, "[0, 1)" + OR_NONE]
    eps: Annotated[float, "[0, inf)"]
    use_bias_correction: Annotated[bool, SWITCH]
    safeguard_warmup: Annotated[bool, SWITCH]
    d0: Annotated[float, "(0, inf)"]
    d_coef: Annotated[float, "(0, inf)"]
    growth_rate: Annotated[float | None, "(1, inf)" + OR_NONE]
    foreach = True

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return averages and a sum of zero, and a copy, all in the parameter's shape."""
        p0 = copied(param)
        return {"p0": p0, "s": torch.zeros_like(p0), **{key: zeros(param, group) for key in ("exp_avg", "exp_avg_sq")}}

    def new_shared_state(self, group: Group) -> State:
        """Return d₀, and a sum of zero, as tensors without axes."""
        d0 = shared_zero(group) + group["d0"]
        names = ("d", "d_max", "d_before", ESTIMATED_LR)
        return {**{name: d0.clone() for name in names}, "d_numerator": torch.zeros_like(d0)}

    def before_step(self, groups: Sequence[tuple[Group, list[ParamEntry]]]) -> None:
        """Estimate the distance from all gradients."""
        first = groups[0][0]
        shared, beta3 = first["shared_state"], first["beta3"]
        beta3 = first["betas"][1] ** 0.5 if beta3 is None else beta3
        d, numerator = shared["d"].clone(), shared["d_numerator"] * beta3
        denominator = torch.zeros_like(d)
        for group, entries in groups:
            group["shared_state"]["d_before"].copy_(d)
            count, (beta1, beta2) = group["shared_state"]["steps"] + 1, group["betas"]
            correction = (1 - beta2**count) ** 0.5 / (1 - beta1**count) if group["use_bias_correction"] else 1.0
            group["shared_state"][ESTIMATED_LR].copy_(d * correction)
            rate = d * correction * scheduled_lr(group, count)
            weight, sign = d / group["d0"], -1 if group["maximize"] else 1
            of_sum = weight * (d if group["safeguard_warmup"] else rate) * sign
            for members, grads, product in progress(entries, "p0"):
                sums = [entry.state["s"] for entry in members]
                torch._foreach_mul_(sums, beta3)
                torch._foreach_add_(sums, torch._foreach_mul(grads, of_sum.to(product)))
                numerator += product.to(d) * weight * rate * sign
                denominator += torch.stack(torch._foreach_norm(sums, 1)).sum().to(d)
        # not reached by NaN, and not moved before there is a gradient
        found = torch.where(denominator > 0, first["d_coef"] * numerator / denominator, d)
        d_max = torch.where(found > shared["d_max"], found, shared["d_max"])
        if first["growth_rate"] is not None:
            d = torch.where((d == first["d0"]) & (found > d), found, d)
            d = torch.minimum(d_max, d * first["growth_rate"])
        else:
            d = d_max
        for group, _ in groups:
            for key, value in (("d", d), ("d_max", d_max), ("d_numerator", numerator)):
                group["shared_state"][key].copy_(value)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the quotient."""
        before, d = estimate(batch, "d_before"), estimate(batch, "d")
        u = update.times(before).value()
        m = batch.state["exp_avg"].lerp_(u, 1 - batch.group["betas"][0])
        v = average_squares(batch.state["exp_avg_sq"], u, beta2_of(batch))
        return Update(m / v.sqrt().add_(d * batch.group["eps"]), overwritable=True)
