"""A Zapformer's layers and their modules: norms, means over time, relative positions, attention, convolution.

A layer adds a quarter of what its modules return, in this order, each from the sum so far:

- a feed-forward module: linear, swash, linear;
- attention: scores are query · key, plus position query · relative position; values are gated before they are averaged
  and again after it, and their mean over time is added to each average;
- a convolution, depthwise, to which the mean over time is added, then a gate, swash, and a linear map;
- another feed-forward module.

Then the utterance is scaled to a root mean square, and what is beyond ±5 is cut. Queries, keys and positions see the
input of the layer, scaled frame by frame. Causal layers see no later frames, but for attention within a chunk.

B batch, T frames, S frames that are attended to, D channels, H heads, K, V, R channels of a head: of queries, values,
and queries for positions, W frequencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from asr.models.encoders.streaming import WHOLE, StreamingCache
from asr.models.encoders.zapformer.limiters import (
    AverageScoreLimit,
    add_residual,
    limit_correlation,
    limit_gates,
    limit_scalar,
)
from asr.models.encoders.zapformer.subsampling import BIAS_RANGE, SWASH_R
from asr.models.encoders.zipformer.modules import LayerSize, attend, attention_weights, by_head, gated
from asr.models.encoders.zipformer.scaling import ActivationDropoutAndLinear, scaled_linear
from asr.models.kernels import at_least_float32, depthwise_conv1d, is_tracing

RESIDUAL_SHARE = 0.25  # of what the modules of a layer return
LARGEST = 5.0  # that a layer returns
CONVOLUTION_INPUT_SCALE = 3.0
MIN_MEAN_SQUARE = 1e-10  # of an utterance that is scaled: silence has no size
BALLAST_UNIT = 100.0  # frames
LOWEST_FREQUENCY = 0.001  # relative to the highest, π


@dataclass(frozen=True)
class Frames:
    """Frames of a batch, as the layers of a stack see them.

    Attributes:
        positions: (T + S − 1, 2W), see `position_basis`.
        padding: (B, T) bool, true after an utterance's end.
        attn_mask: (B, 1, T or 1, S), 0 where a frame may attend to, far below 0 elsewhere.
        num_frames: (B, 1, 1) of each utterance; if causal (1 or B, T, 1), up to each frame.
        limiter_scale: () of the terms that limiters add to the gradients of a layer; None: they add none.
    """

    positions: Tensor
    padding: Tensor
    attn_mask: Tensor
    num_frames: Tensor
    limiter_scale: Tensor | None = None


class _MeanSquare(Function):
    """x (B, T, D) → mean of squares of each frame (B, T, 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # x is kept by others too; autograd would keep it once more for the square
        ctx.save_for_backward(x)
        return torch.linalg.vector_norm(at_least_float32(x), dim=-1, keepdim=True).square_().div_(x.shape[-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x * (gradient * (2 / x.shape[-1]))


def mean_square(x: Tensor) -> Tensor:
    """Return the mean square (B, T, 1) of the frames of x (B, T, D)."""
    return x.square().mean(dim=-1, keepdim=True) if is_tracing() else _MeanSquare.apply(x)


class _Scaled(Function):
    """`scaled`: x (B, T, D), factor (B, T or 1, 1), and the largest value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor, largest: float) -> Tensor:
        ctx.save_for_backward(x, factor)
        ctx.largest = largest
        y = x * factor
        return y if largest == math.inf else y.clamp_(-largest, largest)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, factor = ctx.saved_tensors
        if ctx.largest < math.inf:
            # computed again: whether a value was cut would take a byte for each
            gradient = gradient.masked_fill((x * factor).abs_() > ctx.largest, 0.0)
        d_factor = torch.linalg.vecdot(gradient, x.to(gradient.dtype)).unsqueeze(-1)
        return gradient * factor, d_factor.sum_to_size(factor.shape), None


def scaled(x: Tensor, factor: Tensor, largest: float = math.inf) -> Tensor:
    """Return x (B, T, D) times a factor (B, T or 1, 1), cut to ±``largest``."""
    if is_tracing():
        return x * factor if largest == math.inf else (x * factor).clamp(-largest, largest)
    return _Scaled.apply(x, factor, largest)


class RmsNorm(nn.Module):
    """Scales each frame to about ``scale``: x · scale / √(mean square + eps²)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.tensor(0.2)), nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Scale x (B, T, D)."""
        scale = limit_scalar(self.scale, 0.05, 1.0, self.training)
        eps = limit_scalar(self.eps, 0.0, 10.0, self.training)
        return scaled(x, scale * (mean_square(x) + eps.square()).rsqrt())


class SequenceNorm(nn.Module):
    """Scales an utterance: x · (scale / its root mean square + offset), and cuts what is beyond ±5.

    Causal, a frame is scaled by the root mean square of all frames so far, and of ``ballast_frames`` hundred more that
    have one of ``ballast_rms``.
    """

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.scale, self.offset = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.0001))
        if causal:
            self.ballast_rms, self.ballast_frames = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(0.05))

    def forward(self, x: Tensor, frames: Frames, cache: StreamingCache) -> Tensor:
        """Scale x (B, T, D)."""
        scale = limit_scalar(self.scale, 0.05, 2.0, self.training)
        offset = limit_scalar(self.offset, 0.0, 10.0, self.training)
        energy, num_frames = mean_square(x), frames.num_frames
        if self.causal:
            ballast_rms = limit_scalar(self.ballast_rms, 0.0, 10.0, self.training)
            ballast_frames = limit_scalar(self.ballast_frames, 0.0, 5.0, self.training)
            ballast = BALLAST_UNIT * ballast_frames.abs()
            energy, num_frames = cache.cumsum(energy) + ballast * ballast_rms.square(), num_frames + ballast
        else:
            energy = energy.masked_fill(frames.padding.unsqueeze(2), 0.0).sum(dim=1, keepdim=True)
        mean = (energy / num_frames).clamp(min=MIN_MEAN_SQUARE)
        return scaled(x, scale * mean.rsqrt() + offset, LARGEST)


class WeightedMean(nn.Module):
    """The mean of an utterance's frames, if causal of those so far, times a weight per channel."""

    def __init__(self, num_channels: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.weights = nn.Parameter(0.1 * torch.randn(num_channels))

    def forward(self, x: Tensor, frames: Frames, cache: StreamingCache) -> Tensor:
        """Return (B, 1, D), if causal (B, T, D), of x (B, T, D)."""
        if self.causal:
            return cache.cumsum(x) / frames.num_frames * self.weights
        total = x.masked_fill(frames.padding.unsqueeze(2), 0.0).sum(dim=1, keepdim=True)
        return total / frames.num_frames * self.weights


def position_freqs(num_freqs: int) -> Tensor:
    """Return frequencies (W,) from 0 to π, the low ones at equal distances, the high ones at equal ratios."""
    log_freqs = torch.linspace(math.log(LOWEST_FREQUENCY), math.log(1 + LOWEST_FREQUENCY), num_freqs)
    freqs = math.pi * (log_freqs.exp() - LOWEST_FREQUENCY)
    freqs[0] = 0.0
    return freqs


def position_basis(num_targets: int, num_sources: int, freqs: Tensor) -> Tensor:
    """Return waves over the distances from sources to targets, which fade as the bands of their frequencies are wide.

    A wave e^(iωt) is averaged over a triangular band of frequencies around ω that reaches to its neighbors.

    Args:
        num_targets: T, frames that attend.
        num_sources: S, frames attended to, of which the targets are the last.
        freqs: (W,), see `position_freqs`.

    Returns:
        (T + S − 1, 2W), from the farthest source in the past to the farthest in the future: W cosines, then W sines.

    Reference:
        ``AngularFreqBasis`` of icefall's Zapformer. As there, the foot of a triangle below its frequency is as far away
        as the next higher frequency, and the other way round; trained weights fit these. Differs: 32 bits suffice.
    """
    # With feet at ω − b and ω + a, the averaged wave is ((e^iωt − e^i(ω−b)t) / b + (e^iωt − e^i(ω+a)t) / a) / t² w with
    # w = (a + b) / 2. Differences of waves are written as products, in which no digits are lost.
    gaps = freqs.diff()
    below, above = torch.cat((gaps, gaps[-1:])), torch.cat((gaps[:1], gaps))
    lower, upper, width = freqs - below / 2, freqs + above / 2, (below + above) / 2
    middle = (lower + upper) / 2
    t = torch.arange(1 - num_sources, num_targets, device=freqs.device, dtype=freqs.dtype).unsqueeze(1)
    faded, faded_below, faded_above = (_one_minus_sinc(gap * t / 2) for gap in (width, below, above))
    skew = (faded_above - faded_below) / (width * torch.where(t == 0, 1.0, t))
    cosines = (middle * t).cos() * (1 - faded) * (1 - faded_above) - (lower * t).sin() * skew
    sines = (middle * t).sin() * (1 - faded) * (1 - faded_below) + (upper * t).cos() * skew
    return torch.cat((cosines, sines), dim=1)


def _one_minus_sinc(x: Tensor) -> Tensor:
    """Return 1 − sin(x) / x for x (…)."""
    square = x.square()
    # by a series near 0, where the difference would have few digits
    series = square / 6 * (1 - square / 20 * (1 - square / 42 * (1 - square / 72 * (1 - square / 110))))
    is_small = square < 1
    return torch.where(is_small, series, 1 - x.sin() / torch.where(is_small, 1.0, x))


class RelativePositions(nn.Module):
    """What position queries are multiplied by, for each head and distance."""

    def __init__(self, size: LayerSize) -> None:
        super().__init__()
        weight = 0.04 * torch.randn(size.num_heads, size.pos_head_dim, size.pos_dim)
        for _ in range(10):  # at first, neighboring frequencies have similar weights
            weight = 2**-0.5 * (weight + weight.roll(1, dims=2))
        self.weight = nn.Parameter(weight)
        self.matrix_blocks = {"weight": {"heads": size.num_heads, "dims": (0, 1)}}

    def forward(self, basis: Tensor) -> Tensor:
        """Return (H, R, P) for the distances of a basis (P, 2W)."""
        return self.weight @ basis.to(self.weight.dtype).t()


class SelfAttention(nn.Module):
    """Attention with scores of contents and of relative positions, whose values are gated before and after it."""

    def __init__(self, size: LayerSize) -> None:
        super().__init__()
        dim, values = size.encoder_dim, size.num_heads * size.value_head_dim
        self.num_heads, self.key_scale = size.num_heads, size.query_head_dim**-0.5
        self.dims = *[size.num_heads * size.query_head_dim] * 2, size.num_heads * size.pos_head_dim
        self.in_norm = RmsNorm()
        self.qkp_in_proj = scaled_linear(dim, sum(self.dims), scale=0.125, bias_range=BIAS_RANGE)
        self.rel_pos = RelativePositions(size)
        self.vg_in_proj = scaled_linear(dim, 3 * values, scale=0.1, bias_range=BIAS_RANGE)
        self.out_proj = scaled_linear(values, dim, scale=0.1, bias_range=BIAS_RANGE)
        self.weighted_mean = WeightedMean(values, size.causal)
        self.matrix_blocks = {
            "qkp_in_proj.weight": {"blocks": self.dims, "heads": size.num_heads},
            "vg_in_proj.weight": {"blocks": (*[size.value_head_dim] * size.num_heads, values, values)},
        }

    def forward(self, x: Tensor, value_input: Tensor, frames: Frames, cache: StreamingCache) -> Tensor:
        """Attend from every frame.

        Args:
            x: (B, T, D), of queries, keys and positions.
            value_input: (B, T, D), of values and gates.
            frames: of the batch.
            cache: of the S − T frames before.
        """
        query, key, pos_query = self.qkp_in_proj(self.in_norm(x)).split(self.dims, dim=-1)
        key = cache.extend(key * self.key_scale)
        query, key, pos_query = (by_head(each, self.num_heads) for each in (query, key, pos_query))
        scale = frames.limiter_scale
        limit = None if scale is None else AverageScoreLimit(scale, frames.padding)
        pos = self.rel_pos(frames.positions).to(query.dtype)
        weights = attention_weights(query, key, pos_query, pos, frames.attn_mask, limit)
        num_values = self.out_proj.in_features
        values, gates = self.vg_in_proj(value_input).split((num_values, 2 * num_values), dim=-1)
        before, after = (gates if scale is None else limit_gates(gates, scale)).chunk(2, dim=-1)
        values = gated(values, before, torch.sigmoid)
        mean = self.weighted_mean(values, frames, cache)
        values = by_head(cache.extend(values), self.num_heads)
        averages = attend(weights, values).transpose(1, 2).flatten(2)
        return self.out_proj(gated(averages + mean.to(averages.dtype), after, torch.sigmoid))


class ConvolutionModule(nn.Module):
    """A depthwise convolution and the mean over time, a gate, swash, and a linear map."""

    def __init__(self, size: LayerSize) -> None:
        super().__init__()
        channels, kernel = size.encoder_dim, size.cnn_module_kernel
        self.causal, self.kernel = size.causal, kernel
        self.in_proj = nn.Linear(channels, 2 * channels)
        self.matrix_blocks = {"in_proj.weight": {"blocks": 2}}
        self.depthwise_conv = nn.Conv1d(channels, channels, kernel, groups=channels, bias=False)
        with torch.no_grad():
            self.depthwise_conv.weight[..., torch.arange(kernel, device="cpu") != kernel // 2] *= 0.1
        self.weighted_mean = WeightedMean(channels, size.causal)
        self.out_proj = ActivationDropoutAndLinear(channels, channels, SWASH_R, scale=0.05, bias_range=BIAS_RANGE)

    def forward(self, x: Tensor, frames: Frames, cache: StreamingCache) -> Tensor:
        """Convolve x (B, T, D)."""
        # the weight is scaled, not x: a scaled x would be kept for the gradient
        weight = self.in_proj.weight * CONVOLUTION_INPUT_SCALE
        x, gate = F.linear(x, weight, self.in_proj.bias).chunk(2, dim=-1)
        # the convolution would carry padding into the last valid frames
        x = x.masked_fill(frames.padding.unsqueeze(2), 0.0)
        mean = self.weighted_mean(x, frames, cache)
        around = 0 if self.causal else self.kernel // 2
        x = cache.pad(x, self.kernel - 1) if self.causal else x
        x = depthwise_conv1d(x, self.depthwise_conv.weight, None, around)
        return self.out_proj(gated(x + mean.to(x.dtype), gate, torch.sigmoid))


class FeedforwardModule(nn.Module):
    """A linear map, swash, and a linear map back."""

    def __init__(self, size: LayerSize) -> None:
        super().__init__()
        dim, hidden = size.encoder_dim, size.feedforward_dim
        self.in_proj = scaled_linear(dim, hidden, scale=1.0, bias_range=BIAS_RANGE)
        self.out_proj = ActivationDropoutAndLinear(hidden, dim, SWASH_R, scale=0.5, bias_range=BIAS_RANGE)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, D)."""
        return self.out_proj(self.in_proj(x))


class ZapformerEncoderLayer(nn.Module):
    """A feed-forward module, attention, a convolution, another feed-forward module, and a norm; see above."""

    def __init__(self, size: LayerSize) -> None:
        super().__init__()
        self.size = size
        self.self_attn = SelfAttention(size)
        self.feed_forward1, self.feed_forward2 = FeedforwardModule(size), FeedforwardModule(size)
        self.conv_module = ConvolutionModule(size)
        self.norm = SequenceNorm(size.causal)

    def forward(self, x: Tensor, frames: Frames, cache: StreamingCache = WHOLE) -> Tensor:
        """Apply the layer to x (B, T, D), and to the cached frames before it."""
        before, scale = x, frames.limiter_scale
        x = x if scale is None else limit_correlation(x, frames.padding, scale)
        attended = x
        x = x + self.feed_forward1(x)
        x = x + self.self_attn(attended, x, frames, cache)
        x = x + self.conv_module(x, frames, cache)
        x = x + self.feed_forward2(x)
        return self.norm(add_residual(before, x, RESIDUAL_SHARE, scale), frames, cache)

    def cache_shapes(self, left_frames: int) -> tuple[tuple[int, int], ...]:
        """Return (frames, width) of what each module keeps between chunks, in the order of use."""
        size = self.size
        num_values = size.num_heads * size.value_head_dim
        keys, values = (left_frames, size.num_heads * size.query_head_dim), (left_frames, num_values)
        convolved = size.cnn_module_kernel - 1, size.encoder_dim
        return keys, (1, num_values), values, (1, size.encoder_dim), convolved, (1, 1)
