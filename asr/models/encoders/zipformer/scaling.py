"""Constraints on a Zipformer's activations: limits, Swoosh, balancer, whitening, in kernels of their own.

B batch, T frames, N rows of all utterances, D channels, H hidden channels, E channels of an output, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from asr.models import devices
from asr.models.encoders.zipformer.schedules import BatchCount, FloatLike, ScheduledFloat
from asr.models.kernels import at_least_float32, autocast_dtype, block_of, blocks, is_tracing

BIAS_RANGE = 0.1
INITIAL_NORM_BIAS_STD = 1e-4
LOG_SCALE_LIMIT = 1.5
SLOPE = 0.08  # of Swoosh
LINEAR_FROM = 40.0  # log(1 + e^x) is x from here on in every floating-point type
GRADIENT_SCALE = 0.04  # of balancing
TINY = 1e-20
RMS_OF_MEAN_ABS = 1.25331413732  # √(π/2): of normally distributed values
SELDOM, OFTEN = 0.025, 0.25  # probabilities of whitening


class _LimitParamValue(Function):
    """`limit_param_value`: parameter (…), its least and its largest value, numbers or tensors."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, least: Tensor | float, most: Tensor | float) -> Tensor:
        ctx.save_for_backward(parameter)
        ctx.least, ctx.most = least, most
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (parameter,) = ctx.saved_tensors
        beyond = parameter - parameter.clamp(ctx.least, ctx.most)
        # a descent along a gradient of this sign would lead further out
        return torch.where(beyond.sign_() * gradient < 0, -gradient, gradient), None, None


def limit_param_value(parameter: Tensor, limits: Tensor | tuple[float, float] | None) -> Tensor:
    """Return a parameter (…) unchanged; elements outside of the limits get gradients that lead back inside.

    Args:
        parameter: of any shape.
        limits: two numbers, or (2,) or (2, …) of which each is broadcast to the parameter; None: none.
    """
    if limits is None or not torch.is_grad_enabled():
        return parameter
    least, most = limits
    return _LimitParamValue.apply(parameter, least, most)


def scale_grad(x: Tensor, scale: float) -> Tensor:
    """Return x (…) unchanged; its gradient is multiplied by ``scale``."""
    view = x.view_as(x)
    if view.requires_grad:
        view.register_hook(lambda gradient: gradient * scale)
    return view


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
        return _BiasNorm.apply(x, self.bias, log_scale)


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


def scale_initial_(layer: nn.Linear | nn.Conv2d, scale: float, bias_range: float = BIAS_RANGE) -> None:
    """Multiply the initial weights by ``scale``, and draw biases from ±``bias_range`` · ``scale``."""
    with torch.no_grad():
        layer.weight.mul_(scale)
        if layer.bias is not None:
            nn.init.uniform_(layer.bias, -bias_range * scale, bias_range * scale)


def scaled_linear(
    num_inputs: int, num_outputs: int, scale: float, bias: bool = True, bias_range: float = BIAS_RANGE
) -> nn.Linear:
    """Return a linear map whose output is at first ``scale`` times as large as PyTorch's would be."""
    layer = nn.Linear(num_inputs, num_outputs, bias=bias)
    scale_initial_(layer, scale, bias_range)
    return layer


@dataclass(frozen=True)
class Swoosh:
    """log(1 + e^(β (x − shift))) / β − 0.08 x − offset; of the Zapformer's swash, β is 4.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
        Differs: exact slopes, where the authors' CUDA kernels keep them in one byte.
    """

    shift: float
    offset: float
    beta: float = 1.0

    def __call__(self, x: Tensor, zero: Tensor | None = None) -> Tensor:
        """Return the activation of a tensor of any shape; the backward pass keeps only x.

        The result is 0 where ``zero``, which has as many dimensions, is true.
        """
        if is_tracing():
            shifted = self._shifted(x)
            # not softplus, which takes three times as long in onnxruntime
            activated = F.relu(shifted) + (1.0 + (-shifted.abs()).exp()).log()
            activated = (activated if self.beta == 1.0 else activated / self.beta) - SLOPE * x - self.offset
            return activated if zero is None else activated.masked_fill(zero, 0.0)
        return _Activation.apply(x, self, zero)

    def value(self, x: Tensor) -> Tensor:
        """Return the activation of x (…), of its shape, without a graph."""
        # the default threshold of 20 would be an error of 2e-9 in float64
        activated = F.softplus(x - self.shift, beta=self.beta, threshold=LINEAR_FROM)
        return activated.sub_(x, alpha=SLOPE).sub_(self.offset)

    def slope(self, x: Tensor) -> Tensor:
        """Return the derivative (…) at x (…), without a graph."""
        return self._shifted(x).sigmoid_().sub_(SLOPE)

    def _shifted(self, x: Tensor) -> Tensor:
        """Return β (x − shift)."""
        return x - self.shift if self.beta == 1.0 else (x - self.shift) * self.beta

    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activation of x (…) and its derivative (…), without a graph: log(1 + e^t) is −log σ(−t)."""
        shifted = self._shifted(x)
        # σ must be a normal number, or its logarithm is wrong: it is at 78 in 32 bits, and at 8 in float16; beyond
        # that, the activation is t
        complement = shifted.clamp(max=-0.9 * math.log(torch.finfo(x.dtype).tiny)).neg_().sigmoid_()
        # one σ serves both
        value = torch.maximum(complement.log().neg_(), shifted, out=shifted)
        value = value if self.beta == 1.0 else value.mul_(1 / self.beta)
        return value.sub_(x, alpha=SLOPE).sub_(self.offset), complement.neg_().add_(1.0 - SLOPE)


SWOOSH_L = Swoosh(shift=4.0, offset=0.035)
SWOOSH_R = Swoosh(shift=1.0, offset=0.313261687)


class _Activation(Function):
    """A swoosh of x (…), 0 where ``zero``, which broadcasts to x, is true."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, swoosh: Swoosh, zero: Tensor | None) -> Tensor:
        # x is kept by whoever made it; plain autograd would keep x − shift beside it
        ctx.save_for_backward(x, zero)
        ctx.swoosh = swoosh
        y = torch.empty_like(x)
        for block in blocks(x):
            y[block] = swoosh.value(x[block])
        return y if zero is None else y.masked_fill_(zero, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, zero = ctx.saved_tensors
        d_x = torch.empty_like(x)
        for block in blocks(x):
            torch.mul(gradient[block], ctx.swoosh.slope(x[block]), out=d_x[block])
        # not a product with 0, which would keep what is not finite in the gradient of padding
        return d_x if zero is None else d_x.masked_fill_(zero, 0.0), None, None


class _ActivationDropoutLinear(Function):
    """x (B, T, D), weight (E, D), bias (E,) and mask (B, 1, D) → (B, T, E)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, swoosh: Swoosh) -> Tensor:
        ctx.save_for_backward(x, weight, mask)
        ctx.swoosh = swoosh
        y = x.new_empty(*x.shape[:-1], weight.shape[0])
        for block in blocks(x):
            y[block] = F.linear(masked(swoosh.value(x[block]), block_of(mask, block)), weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mask = ctx.saved_tensors
        d_x, d_weight = torch.empty_like(x), torch.zeros_like(weight)
        # under autocast x and the gradient have 16 bits, the weights 32; d_weight adds blocks up in 32
        low_weight = weight.to(gradient.dtype)
        for block in blocks(x):
            # computed again: kept, it would take as much memory as x, the widest tensor of a layer
            value, slope = ctx.swoosh.value_and_slope(x[block])
            rows = gradient[block].flatten(0, -2)
            value = masked(value, block_of(mask, block)).flatten(0, -2).to(rows.dtype)
            d_weight += rows.t() @ value
            d_x[block] = masked((rows @ low_weight).view_as(slope).mul_(slope), block_of(mask, block))
        d_bias = gradient.flatten(0, -2).sum(dim=0).to(weight.dtype)
        return d_x, d_weight, d_bias, None, None


class ActivationDropoutAndLinear(nn.Linear):
    """A swoosh, dropout of channels of whole utterances, and a linear map.

    The backward pass keeps only the input of the three, and computes the activation again.

    Args:
        scale: of the initial weights, relative to PyTorch's.
        bias_range: of the initial biases, relative to ``scale``.
    """

    def __init__(
        self, num_inputs: int, num_outputs: int, swoosh: Swoosh, scale: float, bias_range: float = BIAS_RANGE
    ) -> None:
        super().__init__(num_inputs, num_outputs)
        scale_initial_(self, scale, bias_range)
        self.swoosh = swoosh

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map x (B, T, D) to (B, T, E); the mask (B, 1, D) has the factors of dropout."""
        if is_tracing():
            return F.linear(masked(self.swoosh(x), mask), self.weight, self.bias)
        return _ActivationDropoutLinear.apply(x, self.weight, self.bias, mask, self.swoosh)


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
    rows = at_least_float32(x).flatten(0, -2)
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
    return torch.addcmul(constant, at_least_float32(x), slope).mul_(gradient.abs()).add_(gradient).to(gradient.dtype)


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


class Mlp(Function):
    """output(swoosh(hidden(x))) · mask of linear maps; the hidden layer is computed again in the backward pass.

    x (N, D), weights and biases (H, D), (H,), (E, H), (E,), mask (N, 1) or None, swoosh, and the bounds (4,) in which a
    balancer keeps the hidden layer, None where it does not work in this pass → (N, E).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        """Return (N, E)."""
        *parameters, mask, swoosh, bounds = rest
        # autocast does not see addmm with `out`: everything is converted to its type
        dtype = autocast_dtype(x)
        to_hidden, hidden_bias, to_output, output_bias = (p.to(dtype) for p in parameters)
        mask = None if mask is None else mask.to(dtype)
        y = x.new_empty(x.shape[0], to_output.shape[0], dtype=dtype)
        sums = None
        for block in blocks(x, to_hidden.shape[0]):
            hidden = F.linear(x[block].to(dtype), to_hidden, hidden_bias)
            if bounds is not None:
                # the balancer needs moments of all frames, and only here all of them pass by once
                share = moments(hidden) * (hidden.shape[0] / x.shape[0])
                sums = share if sums is None else sums.add_(share)
            # CUDA's autocast returns softplus in 32 bits
            torch.addmm(output_bias, swoosh.value(hidden).to(dtype), to_output.t(), out=y[block])
        if mask is not None:
            y.mul_(mask)
        ctx.save_for_backward(x, *parameters, mask, None if sums is None else penalty(sums, bounds))
        ctx.swoosh = swoosh
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weights and biases from that (N, E) of the output."""
        x, *parameters, mask, pull = ctx.saved_tensors
        to_hidden, hidden_bias, to_output, _ = (p.to(gradient.dtype) for p in parameters)
        d_x = torch.empty_like(x, dtype=gradient.dtype)
        # of the parameters' own type: sums of many blocks in 16 bits would lose the later ones
        d_to_hidden, d_hidden_bias, d_to_output, d_output_bias = (torch.zeros_like(p) for p in parameters)
        for block in blocks(x, to_hidden.shape[0]):
            rows, d_y = x[block].to(gradient.dtype), masked(gradient[block], block_of(mask, block))
            hidden = F.linear(rows, to_hidden, hidden_bias)
            value, slope = ctx.swoosh.value_and_slope(hidden)
            d_hidden = (d_y @ to_output).mul_(slope)
            if pull is not None:
                d_hidden = balanced(d_hidden, hidden, pull)
            d_to_output += d_y.t() @ value
            d_output_bias += d_y.sum(dim=0)
            d_to_hidden += d_hidden.t() @ rows
            d_hidden_bias += d_hidden.sum(dim=0)
            torch.mm(d_hidden, to_hidden, out=d_x[block])
        return d_x.to(x.dtype), d_to_hidden, d_hidden_bias, d_to_output, d_output_bias, None, None, None


def whitening_metric(covariance: Tensor) -> Tensor:
    """Return mean(λ²) / mean(λ)² over the eigenvalues λ of covariances (G, D/G, D/G), a scalar: 1 if all are equal."""
    num_channels = covariance.shape[0] * covariance.shape[1]
    # without eigenvalues: the trace is their sum, and the squared Frobenius norm is the sum of their squares
    mean = covariance.diagonal(dim1=1, dim2=2).sum() / num_channels
    return covariance.square().sum() / num_channels / (mean.square() + TINY)


def gradient_matrix(covariance: Tensor) -> Tensor:
    """Return the matrices that map centered groups (G, N, D/G) to the gradient of the metric of centeredᵀ·centered.

    With S the covariances (G, D/G, D/G), M the metric and m the mean eigenvalue, the gradient by S, of its shape, is
    (2/D) (S − M m I) / m².
    """
    num_channels = covariance.shape[0] * covariance.shape[1]
    mean = covariance.diagonal(dim1=1, dim2=2).sum() / num_channels
    square = mean.square() + TINY
    matrix = covariance / square
    matrix.diagonal(dim1=1, dim2=2).sub_(whitening_metric(covariance) * mean / square)
    return matrix.mul_(4 / num_channels)


class _Whitened(Function):
    """x (…, D) unchanged, with the gradient of `Whiten`; limit (), and applies () bool."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: Whiten, limit: Tensor, applies: Tensor) -> Tensor:
        ctx.save_for_backward(x, limit, applies)
        ctx.module = module
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        x, limit, applies = ctx.saved_tensors
        # eigenvalues of a covariance in 16 bits would be equal to within rounding, or infinite
        exact = at_least_float32(x)
        rows = exact.flatten(0, -2)
        # (G, N, D/G)
        centered = (rows - rows.mean(dim=0)).unflatten(1, (ctx.module.num_groups, -1)).transpose(0, 1)
        covariance = centered.transpose(1, 2) @ centered
        violated = whitening_metric(covariance) >= limit
        ctx.module.remember(violated, applies)
        # on a GPU all is computed, if only to be multiplied by 0: the host would have to wait for `violated`
        if not devices.on_accelerator(x) and not violated:
            return gradient, None, None, None
        extra = (centered @ gradient_matrix(covariance)).transpose(0, 1).reshape(gradient.shape)
        # the norm of a gradient in 16 bits overflows
        norm, extra_norm = (torch.linalg.vector_norm(g.to(exact.dtype)) for g in (gradient, extra))
        scale = ctx.module.gradient_scale * norm / (extra_norm + TINY)
        extra.mul_(torch.where(violated & applies, scale, 0.0))
        return extra.add_(gradient).to(gradient.dtype), None, None, None


class Whiten(nn.Module):
    """Returns its input, and adds a term to its gradient that makes the channels' covariance more like a multiple of 1.

    The term is the gradient of `whitening_metric` if that is above the limit, scaled to a fraction of the norm of the
    gradient. It is active in one of 4 forward passes while the limit is violated, else in one of 40.

    Args:
        limit: of `whitening_metric`, at least 1, in the first batch.
        ratio: of the limit from 20,000 batches on to the first.
        gradient_scale: norm of the term, relative to the norm of the gradient.
        num_groups: G, whose covariances are all held to one multiple of 1.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230, appendix; the definition is that of icefall's code.
        Differs: its probability is saved in checkpoints, and all ranks use that of the first.
    """

    def __init__(
        self,
        batch_count: BatchCount,
        limit: float,
        ratio: float = 1.0,
        gradient_scale: float = 0.01,
        num_groups: int = 1,
    ) -> None:
        super().__init__()
        growing = ScheduledFloat(batch_count, (0.0, limit), (20_000.0, ratio * limit))
        self.batch_count, self.limit = batch_count, limit if ratio == 1 else growing
        self.gradient_scale, self.num_groups = gradient_scale, num_groups
        self.largest_probability = OFTEN
        self.place = batch_count.register(self.limit).start
        # a buffer: a resumed run must continue with it, and DistributedDataParallel sends the first rank's to all
        self.probability = nn.Buffer(torch.tensor(OFTEN))

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, …, D)."""
        # before the buffer is read: most passes end here, on every device
        is_active = self.training and self.batch_count.is_active(self.largest_probability)
        if not is_active or not x.requires_grad:
            return x
        random_number, limit = self.batch_count.values[0], self.batch_count.values[self.place]
        applies = self.probability > random_number
        if not devices.on_accelerator(x) and not applies:
            return x
        return _Whitened.apply(x, self, limit, applies)

    def remember(self, violated: Tensor, applies: Tensor) -> None:
        """Raise the probability of later passes if the limit was ``violated``, else lower it; both () bool."""
        probability = torch.where(violated, OFTEN, SELDOM)
        # a pass that was only computed to spare the host a wait must change nothing
        self.probability.copy_(torch.where(applies, probability, self.probability))
