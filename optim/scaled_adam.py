"""ScaledAdam: Adam whose steps are relative to the size of each tensor, and which learns that size too."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import torch
from torch import Tensor

from optim.engine.chain import Chain, ChainOptions
from optim.engine.options import WHOLE, check_order
from optim.engine.param_batch import (
    Group,
    ParamBatch,
    Scalar,
    State,
    Update,
    assign,
    at_least,
    at_most,
    choose,
    state_dtype,
    zero_per_axes,
    zeros,
)
from optim.engine.transform import Transform
from optim.transforms.adam import same_layout, step_by_rms
from optim.transforms.clipping import Clamp, ClipByMedianNorm

CORRECTED_BELOW = 0.99  # if 1 − β₂ᵗ is less, the averaged square is corrected for its start at zero
LARGEST_CHANGE = 0.1  # of the logarithm of the size, before momentum
SMALLEST_RATE = 1e-100  # below it 1/rate could overflow
TINY = 1e-30  # keeps quotients finite if tensors of zeros have no gradient


class ScaledAdam(Chain):
    """Adam in units of a tensor's size, which is learned too; gradients are clipped by the median norm of recent steps.

    In order: `ClipByMedianNorm` limits the gradients of a group, `ScaledChange` makes a change of the parameter and of
    its size of them, and `Clamp` bounds parameters of one element. A gradient that is None counts as zero. Momentum is
    on the parameter's change.

    Use: on Zipformers, with `Eden`; icefall's current optimizer.

    State: 8 bytes per float32 parameter: δ (``delta``), v (``exp_avg_sq``), r (``param_rms``), S (``scale_grad``) and z
    (``scale_exp_avg_sq``); for each group the recent norms and the threshold of clipping.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate relative to the parameter's size, at least 0; a tensor of one element is allowed.
        clipping_scale: how many times the median norm a gradient may be, above 0; None for no clipping.
        betas: decay of the momentum and of the averages of squares, each in [0, 1).
        scalar_lr_scale: times lr, the rate of single elements and of the sizes of tensors, at least 0.
        eps: added to the roots, at least 0.
        param_min_rms: floor of the size that steps are relative to, at least 0.
        param_max_rms: size above which a tensor is shrunk, above 0.
        scalar_max: bound of single elements, above 0.
        size_update_period: steps between updates of the size, at least 1.
        clipping_update_period: steps between estimates of the median, at least 1.
        common: see `ChainOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.
        RuntimeError: about half of the recent norms were not finite, in a step on a CPU with clipping; for other
            devices see `ClipByMedianNorm`.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230;
        github.com/k2-fsa/icefall/blob/master/egs/librispeech/ASR/zipformer/optim.py, class ScaledAdam. Also the
        defaults, those of the code.
        Differs: gradients are not modified by clipping; nothing is logged, and nothing waits for the device; statistics
        of float64 parameters are float64.

    Examples:
        >>> large, small = nn.Parameter(torch.ones(4)), nn.Parameter(torch.full((4,), 0.01))
        >>> optimizer = optim.ScaledAdam([large, small], lr=0.03, clipping_scale=2.0)
        >>> for _ in range(20):
        ...     large.grad, small.grad = torch.ones(4), torch.ones(4)
        ...     optimizer.step()
        >>> f"{large[0].item():.4f} {small[0].item():.6f}"  # both shrink by the same share
        '0.6370 0.006370'
    """

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
        **common: Unpack[ChainOptions],
    ) -> None:
        own = locals()
        clamp = Clamp(scalar_max, "scalar_max", scalars_only=True)
        transforms = [ClipByMedianNorm.of(own), ScaledChange.of(own), clamp]
        super().__init__(params, transforms, lr=lr, **common)

    def update(self) -> None:
        """Step by a gradient of zeros where there is none: as in the reference, momentum and averages continue."""
        params = [param for group in self.param_groups for param in group["params"] if param.grad is None]
        try:
            for param in params:
                param.grad = torch.zeros_like(param)
            super().update()
        finally:
            for param in params:
                param.grad = None


class ScaledChange(Transform):
    """Turns a gradient into the averaged change δ of the parameter, which changes its direction and its size.

    At the parameter's own step t = 1, 2, …, with N elements and gradient u. If N > 1, in periods of
    P = size_update_period steps, with D = ⟨p, u⟩, the derivative of the loss by the logarithm of the size:

        S ← sum of D over the steps of this period
        z ← β₂ᴾ z + (1 − β₂ᴾ) mean of D² over the steps of this period        with P = 1 from t = 2
        r ← rms(p)                                                            at t = 1, and at the end of a period

    Every step:

        v ← β₂ v + (1 − β₂) u²,   c = 1 − β₂ᵗ if that is below 0.99, else 1
        a = max(r, param_min_rms)      scalar_lr_scale if N = 1
        δ ← β₁ δ − (1 − β₁) lr · a · u/(√v/√c + eps)

    If N > 1, at the end of a period, from t = 2:

        s = −lr · scalar_lr_scale · √(1 − β₂ᵗ) · S/(√z + eps)          0 if r < param_min_rms
        s ← min(clamp(s, ±0.1), (param_max_rms − r)/r)
        δ ← δ + (1 − β₁) s p
    """

    betas: Annotated[tuple[float, float], ("[0, 1)", "[0, 1)")]
    eps: Annotated[float, "[0, inf)"]
    scalar_lr_scale: Annotated[float, "[0, inf)"]
    param_min_rms: Annotated[float, "[0, inf)"]
    param_max_rms: Annotated[float, "(0, inf)"]
    size_update_period: Annotated[int, "[1, inf)" + WHOLE]
    foreach = shardable = asks_single = True

    def check(self, group: Group) -> None:
        """Refuse an empty range of sizes."""
        check_order(group, "param_min_rms", "param_max_rms")

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return v and δ of zero, (*shape); for more than one element also r, and S and z of zero, (1, …)."""
        state: State = {"exp_avg_sq": zeros(param, group), "delta": zeros(param, group)}
        if param.numel() <= 1:
            return state
        # measured now and not at the first step: clipping weights the first gradients by it
        norm = torch.linalg.vector_norm(param.detach(), dtype=state_dtype(param))
        state["param_rms"] = (norm / param.numel() ** 0.5).reshape([1] * param.dim())
        return {**state, "scale_grad": zero_per_axes(param, ()), "scale_exp_avg_sq": zero_per_axes(param, ())}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the negative change, because updates are subtracted."""
        period_ends = batch.step % int(batch.group["size_update_period"]) == 0
        if not batch.single_element:
            _measure(update, batch, period_ends)
        u, rate, (delta, v) = update.value(), _rate(batch), (batch.state["delta"], batch.state["exp_avg_sq"])
        # on other devices the kernel's rate would have to be a number too
        suits_kernel = u.device.type == "cpu" and same_layout(u, delta) and same_layout(delta, v)
        if suits_kernel and isinstance(rate, float) and rate > SMALLEST_RATE and not isinstance(batch.step, Tensor):
            # to torch's kernel δ is a parameter, which its decay multiplies by β₁ and its step moves by the rest
            decay = (1 - batch.group["betas"][0]) / rate
            step_by_rms(delta, u, v, batch, lr=rate, decay=decay, corrects=bool(_correction(batch) < 1))
        else:
            _plain(u, rate, batch)
        grows = (batch.step > 1) & period_ends
        if not batch.single_element and (grows is not False):
            # an update is subtracted
            growth = Update(batch.param, choose(grows, _growth(batch) * (batch.group["betas"][0] - 1), 0.0))
            growth.subtract_from(delta)
        # only now, when δ is complete: the update that leaves is the statistic itself
        return Update(delta, -1.0)


def _measure(update: Update, batch: ParamBatch, period_ends: bool | Tensor) -> None:
    """Update S, z and r."""
    state, period = batch.state, batch.group["size_update_period"]
    # the factor of clipping multiplies a number here, not every element
    derivative = batch.dot(batch.param, update.unscaled()) * update.scale
    total, average = batch.read(state["scale_grad"]), batch.read(state["scale_exp_avg_sq"])
    kept = batch.group["betas"][1] ** period
    begins = (batch.step - 1) % period == 0
    total, average = choose(begins, 0.0, total), choose(begins, average * kept, average)
    assign(state["scale_grad"], total + derivative)
    if period > 1 or isinstance(batch.step, Tensor) or batch.step > 1:
        counted = (batch.step > 1) | (period > 1)
        assign(
            state["scale_exp_avg_sq"], average + choose(counted, derivative * derivative * ((1 - kept) / period), 0.0)
        )
    if period_ends is not False:
        assign(state["param_rms"], choose(period_ends, batch.rms(batch.param), batch.read(state["param_rms"])))


def _rate(batch: ParamBatch) -> Scalar:
    """Return (1 − β₁) lr · a."""
    group = batch.group
    size: Scalar = group["scalar_lr_scale"]
    if not batch.single_element:
        size = at_least(batch.read(batch.state["param_rms"]), group["param_min_rms"])
    rate: Scalar = size * (group["lr"] * (1 - group["betas"][0]))
    return rate


def _plain(u: Tensor, rate: Scalar, batch: ParamBatch) -> None:
    (beta1, beta2), c = batch.group["betas"], _correction(batch)
    v = batch.state["exp_avg_sq"].mul_(beta2).addcmul_(u, u, value=1 - beta2)
    # u/(√v/√c + eps) = √c u/(√v + √c eps) saves a pass over the elements
    direction = u / v.sqrt().add_(c**0.5 * batch.group["eps"])
    Update(direction, rate * c**0.5).subtract_from(batch.state["delta"].mul_(beta1))


def _correction(batch: ParamBatch) -> Scalar:
    c = 1 - batch.group["betas"][1] ** batch.step
    return choose(c < CORRECTED_BELOW, c, 1.0)


def _growth(batch: ParamBatch) -> Scalar:
    """Return s, the change of the logarithm of the size before momentum."""
    group, read = batch.group, batch.read
    root = read(batch.state["scale_exp_avg_sq"]) ** 0.5 + group["eps"]
    corrected = (1 - group["betas"][1] ** batch.step) ** 0.5
    s = read(batch.state["scale_grad"]) / at_least(root, TINY) * (-corrected * group["scalar_lr_scale"] * group["lr"])
    rms = read(batch.state["param_rms"])
    # a factor of True or False, since `if` would wait for the device
    s = at_most(at_least(s * (rms >= group["param_min_rms"]), -LARGEST_CHANGE), LARGEST_CHANGE)
    return at_most(s, (group["param_max_rms"] - rms) / at_least(rms, TINY))
