"""Balancer: keeps each channel's mean and size in bounds, by its gradient alone.

B batch, T frames, D channels; a frame may also be a place in an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from asr.models.encoders.zipformer.scaling import BatchCount, FloatLike, ScheduledFloat
from asr.models.kernels import blocks

GRADIENT_SCALE = 0.04
TINY = 1e-20
RMS_OF_MEAN_ABS = 1.25331413732  # √(π/2): of normally distributed values


def normalized_mean(proportion_positive: float) -> float:
    """Return about the mean / std of normally distributed values of which this proportion is positive."""
    x = 2 * proportion_positive - 1
    # a crude inverse of the error function, and finite at 0 and 1
    return 0.8139535143 * (math.log(1 + x + 1e-10) - math.log(1 - x + 1e-10)) / 2


@dataclass(frozen=True)
class Bound:
    """A bound on a quantity, derived from that of another one."""

    value: FloatLike
    derive: Callable[[float], float]

    def __float__(self) -> float:
        """Return the bound now."""
        return self.derive(float(self.value))


def moments(x: Tensor) -> Tensor:
    """Return the mean and the mean square (2, D) of the channels of x (…, D), in at least 32 bits."""
    rows = _exact(x).flatten(0, -2)
    # a norm needs no tensor of squares
    return torch.stack((rows.mean(dim=0), torch.linalg.vector_norm(rows, dim=0).square() / rows.shape[0]))


def penalty(moments: Tensor, bounds: Tensor) -> Tensor:
    """Return 0.04 times the normalized gradient of the violation of the bounds: per channel, linear in x.

    The violation is |m − clamp(m)| + |log(clamp(r) / r)| with m = mean / std and r the root mean square of a channel.
    Its gradient, scaled to a root mean square of 1 in each channel that violates a bound, is ``constant + slope · x``.

    Args:
        moments: (2, D) `moments`.
        bounds: (4,) least and largest m, least and largest r.

    Returns:
        (2, D), constant and slope.
    """
    mean, mean_square = moments
    min_mean, max_mean, min_rms, max_rms = bounds.unbind()
    raw_variance = mean_square - mean.square()
    # rounding makes the variance of a constant channel negative, and its root NaN
    variance = raw_variance.clamp(min=TINY)
    std, rms = variance.sqrt(), mean_square.clamp(min=TINY).sqrt()
    normalized = mean / std
    side = torch.sign(normalized - normalized.clamp(min_mean, max_mean))
    size = torch.sign(rms - rms.clamp(min_rms, max_rms))
    # around the mean: at_mean + slope · (x − mean), up to a factor of 1/N; a clamped variance has no gradient
    slope = size / rms.square() - torch.where(raw_variance > TINY, side * mean / (variance * std), 0.0)
    at_mean = side / std + size * mean / rms.square()
    # at least TINY: without a violation this is 0 / 0
    gradient_rms = (at_mean.square() + slope.square() * variance).sqrt().clamp(min=TINY)
    slope = slope / gradient_rms
    return torch.stack((at_mean / gradient_rms - slope * mean, slope)).mul_(GRADIENT_SCALE)


def balanced(gradient: Tensor, x: Tensor, pull: Tensor) -> Tensor:
    """Return the gradient (…, D) by x (…, D), plus its absolute value times the `penalty` (2, D)."""
    constant, slope = pull
    return torch.addcmul(constant, _exact(x), slope).mul_(gradient.abs()).add_(gradient).to(gradient.dtype)


def _exact(x: Tensor) -> Tensor:
    # a sum over all frames in 16 bits would lose most of them
    return x if x.dtype == torch.float64 else x.float()


class _Balanced(Function):
    """x (…, D) unchanged; its gradient is `balanced` with bounds (4,)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bounds: Tensor) -> Tensor:
        ctx.save_for_backward(x, bounds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, bounds = ctx.saved_tensors
        # of all frames at once; only the change of the gradient is computed block by block
        pull = penalty(moments(x), bounds)
        # not in place: others may hold the same gradient
        changed = torch.empty_like(gradient)
        for block in blocks(x):
            changed[block] = balanced(gradient[block], x[block], pull)
        return changed, None


class Balancer(nn.Module):
    """Returns its input, and changes the gradient of channels whose mean or size is out of bounds.

    To each element of the gradient it adds 0.04 times its absolute value times the normalized gradient of the
    violation (`penalty`), so that a descent leads back into the bounds.

    Args:
        min_positive: least proportion of positive values.
        max_positive: largest proportion of positive values.
        min_abs: least mean absolute value.
        max_abs: largest mean absolute value.
        probability: of working in a forward pass in training; None: falls from 0.5 to 0.125.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230, appendix; the definition is that of icefall's code.
        Differs: on a GPU the authors leave it out in the 5 % of passes with the most memory in use, so that gradients
        depend on what else is in that memory.
    """

    def __init__(
        self,
        batch_count: BatchCount,
        min_positive: FloatLike,
        max_positive: FloatLike,
        min_abs: FloatLike,
        max_abs: FloatLike,
        probability: FloatLike | None = None,
    ) -> None:
        super().__init__()
        self.min_positive, self.max_positive, self.min_abs, self.max_abs = min_positive, max_positive, min_abs, max_abs
        falling = ScheduledFloat(batch_count, (0.0, 0.5), (8000.0, 0.125))
        self.batch_count, self.probability = batch_count, falling if probability is None else probability
        of_means = (Bound(value, normalized_mean) for value in (min_positive, max_positive))
        of_sizes = (Bound(value, RMS_OF_MEAN_ABS.__mul__) for value in (min_abs, max_abs))
        self.place = batch_count.register(*of_means, *of_sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, …, D)."""
        bounds = self.active_bounds(x.requires_grad)
        return x if bounds is None else _Balanced.apply(x, bounds)

    def active_bounds(self, requires_grad: bool) -> Tensor | None:
        """Return the bounds (4,) of this pass; None if the balancer is not active in it, or x needs no gradient."""
        is_active = self.training and requires_grad and self.batch_count.is_active(self.probability)
        return self.batch_count.values[self.place] if is_active else None
