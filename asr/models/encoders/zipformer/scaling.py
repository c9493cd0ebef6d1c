"""Scheduled values, limits on gradients, normalization, dropout and initial weights of the Zipformer.

B batch, T frames, D channels.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.autograd import Function

from asr.models.kernels import is_tracing

BIAS_RANGE = 0.1
INITIAL_NORM_BIAS_STD = 1e-4
LOG_SCALE_LIMIT = 1.5
LIMIT_PROBABILITY = 0.6  # of limiting a parameter in a forward pass


class BatchCount:
    """How far training is: the number of batches of ``ref_duration_s`` seconds of audio since it began.

    Every scheduled value of an encoder reads the same one. Counting audio, as icefall's ``get_adjusted_batch_count``
    does, makes schedules independent of the batch size, of the number of processes, and of accumulation.

    Attributes:
        stochastic: probabilities of everything that changes gradients in some forward passes only.
        random_number: uniform in [0, 1); decides in `is_active` what is active in this pass.
        is_plain: whether nothing of ``stochastic`` is active in this pass.
        values: (N,) on the encoder's device: ``random_number``, then the registered values of this pass.
    """

    def __init__(self) -> None:
        # no default: training would silently use values of another time
        self._num_batches: float | None = None
        # many modules share a schedule: each is evaluated once
        self._distinct: list[FloatLike] = []
        self._places: list[int] = []
        self.stochastic: Sequence[FloatLike] = ()
        self.random_number, self.is_plain = 1.0, True
        self.values = torch.empty(0)

    def set(self, num_batches: float) -> None:
        """Set the number of batches, at least 0."""
        self._num_batches = num_batches

    def register(self, *values: FloatLike) -> slice:
        """Have values computed for each forward pass; return where in ``values`` they will be."""
        self._distinct += [value for value in dict.fromkeys(values) if value not in self._distinct]
        self._places += map(self._distinct.index, values)
        return slice(1 + len(self._places) - len(values), 1 + len(self._places))

    def begin_pass(self, device: torch.device) -> tuple[bool, ...]:
        """Draw what is active in a forward pass in training, and compute all values for it.

        Returns:
            Whether each of ``stochastic`` is active: passes with equal tuples run the same code.
        """
        self.random_number = draw()
        is_active = tuple(map(self.is_active, self.stochastic))
        self.is_plain = not any(is_active)
        distinct = [float(value) for value in self._distinct]
        # one copy for all of them
        self.values = refilled(self.values, [self.random_number, *(distinct[place] for place in self._places)], device)
        return is_active

    def is_active(self, probability: FloatLike) -> bool:
        """Return whether a module that acts with this probability is active in this forward pass.

        One random number decides for all modules. Each keeps its probability, but rare ones are active in the same
        passes: many passes have none of them, and all of those run the same code, which can be compiled.
        """
        return not is_tracing() and self.random_number < float(probability)

    @property
    def num_batches(self) -> float:
        """The number that was set last.

        Raises:
            RuntimeError: none was set.
        """
        if self._num_batches is None:
            raise RuntimeError(
                "a Zipformer in training mode must know how far training is: call set_batch_count(audio_s) before each "
                "update, or eval() to encode without training"
            )
        return self._num_batches


def refilled(former: Tensor, numbers: Sequence[float], device: torch.device) -> Tensor:
    """Return numbers (N,) on a device; in the memory of ``former`` (N,) if it fits, where captured passes read."""
    values = torch.tensor(numbers)
    if former.device != device or len(former) != len(values):
        return values.to(device)
    return former.copy_(values.pin_memory() if device.type == "cuda" else values, non_blocking=True)


class ScheduledFloat:
    """A value that is linear between points in time, and constant before the first and after the last point.

    Args:
        points: (batches, value), ordered by batches.
    """

    def __init__(self, batch_count: BatchCount, *points: tuple[float, float]) -> None:
        self.batch_count = batch_count
        self.times = [time for time, _ in points]
        self.values = [value for _, value in points]

    def __float__(self) -> float:
        """Return the value at the current number of batches."""
        num_batches = self.batch_count.num_batches
        if num_batches <= self.times[0]:
            return self.values[0]
        if num_batches >= self.times[-1]:
            return self.values[-1]
        right = bisect.bisect_right(self.times, num_batches)
        start, end = self.times[right - 1], self.times[right]
        return self.values[right - 1] + (num_batches - start) / (end - start) * (
            self.values[right] - self.values[right - 1]
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScheduledFloat) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((*self.times, *self.values))


@dataclass(frozen=True)
class Limit:
    """A limit of a parameter in the passes in which it is active, infinite in others.

    Attributes:
        value: the limit.
        infinite: −∞ of a least value, ∞ of a largest.
    """

    batch_count: BatchCount
    value: FloatLike
    infinite: float

    def __float__(self) -> float:
        """Return the limit in this pass."""
        return float(self.value) if self.batch_count.is_active(LIMIT_PROBABILITY) else self.infinite


class Event:
    """1 in the passes in which it happens, which are drawn for it alone, in others 0.

    For what changes encodings: layers would all be changed at once if one number decided for them.
    """

    def __init__(self, probability: FloatLike) -> None:
        self.probability = probability

    def __float__(self) -> float:
        """Draw whether it happens."""
        return float(draw() < float(self.probability))


def limits(batch_count: BatchCount, least: FloatLike, most: FloatLike) -> tuple[Limit, Limit]:
    """Return limits of a parameter, see `limit_param_value`."""
    return Limit(batch_count, least, -math.inf), Limit(batch_count, most, math.inf)


FloatLike = SupportsFloat
"""A constant or a value that changes; ``float()`` gives its value now."""


def draw() -> float:
    """Draw from [0, 1)."""
    # from torch's generator, so that torch.manual_seed decides every random choice: the authors draw from Python's;
    # on the CPU, because reading a number from a GPU would wait for it
    return float(torch.rand(()))


class _LimitParamValue(Function):
    """`limit_param_value`: parameter (…), limits (2,)."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, limits: Tensor) -> Tensor:
        ctx.save_for_backward(parameter, limits)
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        parameter, limits = ctx.saved_tensors
        least, most = limits.unbind()
        # a descent along a gradient of this sign would lead further out
        outwards = ((parameter < least) & (gradient > 0)) | ((parameter > most) & (gradient < 0))
        return torch.where(outwards, -gradient, gradient), None


def limit_param_value(parameter: Tensor, limits: Tensor | None) -> Tensor:
    """Return a parameter (…) unchanged; elements outside of the limits (2,) get gradients that lead back inside."""
    if limits is None:
        return parameter
    limited: Tensor = _LimitParamValue.apply(parameter, limits)
    return limited


class _ScaleGrad(Function):
    """`scale_grad` of x (…)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.scale, None


def scale_grad(x: Tensor, scale: float) -> Tensor:
    """Return x (…) unchanged; its gradient is multiplied by ``scale``."""
    scaled: Tensor = _ScaleGrad.apply(x, scale)
    return scaled


def _norm_factor(x: Tensor, bias: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean square of x − b in each frame, and r = e^s / rms(x − b)."""
    mean_square = (x - bias).square_().mean(dim=-1, keepdim=True)
    return mean_square, mean_square.rsqrt() * log_scale.exp()


class _BiasNorm(Function):
    """y = x · r for x (…, D), bias (D,), log_scale (), with r of `_norm_factor`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, log_scale: Tensor) -> Tensor:
        mean_square, factor = _norm_factor(x, bias, log_scale)
        # x − b is computed again in the backward pass: autograd would keep it in memory for every norm
        ctx.save_for_backward(x, bias, mean_square, factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, bias, mean_square, factor = ctx.saved_tensors
        along_factor = (gradient * x).sum(dim=-1, keepdim=True) * factor
        # ∂r/∂x = −r (x − b) / (D · mean square), and ∂r/∂b = −∂r/∂x
        pull = along_factor / (mean_square * x.shape[-1])
        pulled = (x - bias).mul_(pull)
        # before `pulled` changes its sign in place, for the bias has the other one
        d_bias = pulled.flatten(0, -2).sum(dim=0)
        return pulled.neg_().addcmul_(gradient, factor), d_bias, along_factor.sum()


class BiasNorm(nn.Module):
    """Scales every frame to e^log_scale of its root mean square around a learned bias.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
    """

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(1.0))
        self.bias = nn.Parameter(torch.randn(num_channels) * INITIAL_NORM_BIAS_STD)

    def forward(self, x: Tensor, limits: Tensor | None = None) -> Tensor:
        """Normalize x (B, T, D); limits (2,) of the logarithm of the scale."""
        log_scale = limit_param_value(self.log_scale, limits)
        if is_tracing():
            return x * _norm_factor(x, self.bias, log_scale)[1]
        normalized: Tensor = _BiasNorm.apply(x, self.bias, log_scale)
        return normalized


def utterance_mask(x: Tensor, probability: Tensor) -> Tensor:
    """Return factors (B, 1, 1), 0 with ``probability`` (1,), else 1."""
    return (torch.rand(x.shape[0], 1, 1, device=x.device) >= probability).to(x.dtype)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x (…) times a mask, such as (B, 1, 1), that broadcasts with it; x if there is none."""
    return x if mask is None else x * mask


class SharedDropout(nn.Module):
    """Drops channels of whole utterances: the mask is the same for all frames."""

    def __init__(self, batch_count: BatchCount, probability: FloatLike) -> None:
        super().__init__()
        self.batch_count, self.probability = batch_count, probability
        self.place = batch_count.register(probability)

    def forward(self, x: Tensor) -> Tensor:
        """Drop channels of x (B, T, D) in training."""
        if not self.training:
            return x
        probability = self.batch_count.values[self.place]
        mask = torch.rand(x.shape[0], 1, x.shape[2], device=x.device) >= probability
        return x * (mask / (1 - probability)).to(x.dtype)


def scale_initial_(layer: nn.Linear | nn.Conv2d, scale: float) -> None:
    """Multiply the initial weights by ``scale``, and draw biases from ±0.1 · ``scale``."""
    with torch.no_grad():
        layer.weight.mul_(scale)
        if layer.bias is not None:
            nn.init.uniform_(layer.bias, -BIAS_RANGE * scale, BIAS_RANGE * scale)


def scaled_linear(num_inputs: int, num_outputs: int, scale: float, bias: bool = True) -> nn.Linear:
    """Return a linear map whose output is at first ``scale`` times as large as PyTorch's would be."""
    layer = nn.Linear(num_inputs, num_outputs, bias=bias)
    scale_initial_(layer, scale)
    return layer
