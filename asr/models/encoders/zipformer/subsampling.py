"""The ConvNeXt layer of the Zipformer's front end, and its two kernels.

B batch, T frames, F frequencies, C channels, N places of all images, D width, H hidden width, E width of the output,
W kernel width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.grad import conv2d_weight

from asr.models.encoders.transformer import padded_to
from asr.models.encoders.zipformer.scaling import (
    LOG_SCALE_LIMIT,
    SWOOSH_L,
    SWOOSH_R,
    Balancer,
    BatchCount,
    BiasNorm,
    FloatLike,
    ScheduledFloat,
    SharedDropout,
    Swoosh,
    Whiten,
    balanced,
    limits,
    masked,
    moments,
    penalty,
    scale_grad,
    scaled_linear,
    utterance_mask,
)
from asr.models.kernels import autocast_dtype, block_of, blocks, is_tracing

KERNEL_SIZE = 7
CONTEXT = KERNEL_SIZE // 2  # frames seen on each side


class ConvNeXt(nn.Module):
    """x + a depthwise convolution over time and frequency, and two linear maps with three times the channels between.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230, which takes it from Liu et al. 2022, "A ConvNet for the 2020s",
        arXiv:2201.03545. Differs: no normalization, and SwooshL.
    """

    def __init__(self, batch_count: BatchCount, channels: int) -> None:
        super().__init__()
        self.depthwise_conv = DepthwiseConv2d(channels, KERNEL_SIZE)
        self.pointwise_conv1 = nn.Linear(channels, 3 * channels)
        self.hidden_balancer = Balancer(batch_count, 0.3, 1.0, 0.75, 5.0)
        self.pointwise_conv2 = scaled_linear(3 * channels, channels, scale=0.01)
        self.out_balancer = Balancer(batch_count, 0.4, 0.6, 1.0, 6.0)
        self.out_whiten = Whiten(batch_count, 5.0)
        self.layerdrop_rate = ScheduledFloat(batch_count, (0.0, 0.2), (20_000.0, 0.015))
        self.batch_count, self.rate = batch_count, batch_count.register(self.layerdrop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (B, T, F, C), which must be 0 where padded."""
        mask = utterance_mask(x, self.batch_count.values[self.rate]) if self.training else None
        convolved, x = self.depthwise_conv(x)
        return self.out_whiten(self.out_balancer(self._mlp(convolved, mask).add_(x)))

    def stream(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the layer to a chunk.

        Args:
            x: (B, T + 3, F, C), the chunk and what it sees of the next.
            past: (B, 3, F, C), the end of the chunk before.

        Returns:
            (B, T, F, C), and the end of this chunk (B, 3, F, C).
        """
        extended = torch.cat((past, x), dim=1)
        x = x[:, :-CONTEXT]
        return x + self._mlp(self.depthwise_conv(extended, pad_time=False)[0]), extended[:, x.shape[1] : -CONTEXT]

    def _mlp(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map x (B, T, F, C), and multiply it by factors (B, 1, 1)."""
        if is_tracing():
            return self.pointwise_conv2(SWOOSH_L(self.pointwise_conv1(x)))
        # asked here, because inside of `mlp` nothing requires a gradient
        trained = torch.is_grad_enabled() and (x.requires_grad or self.pointwise_conv1.weight.requires_grad)
        bounds = self.hidden_balancer.active_bounds(trained)
        if mask is not None:
            mask = mask.expand(-1, *x.shape[1:3]).reshape(-1, 1)
        rows = x.flatten(0, 2)
        return mlp(rows, self.pointwise_conv1, SWOOSH_L, self.pointwise_conv2, mask, bounds).view(x.shape)


class DepthwiseConv2d(nn.Conv2d):
    """Convolves each channel with its own square kernel, and keeps the size of the image."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__(channels, channels, kernel_size, groups=channels)

    def forward(self, x: Tensor, pad_time: bool = True) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Convolve x (B, T, F, C), with zeros around it; without ``pad_time`` only at the ends of the frequencies.

        Returns:
            (B, T, F, C) convolved, of T − ``kernel_size`` + 1 frames without ``pad_time``, and x itself for the
            residual branch: the gradients of both add up in place.
        """
        around = self.kernel_size[0] // 2
        padding = (around if pad_time else 0, around)
        image = x.permute(0, 3, 1, 2)
        if is_tracing():
            convolved = F.conv2d(image, self.weight, self.bias, padding=padding, groups=self.groups)
            return convolved.permute(0, 2, 3, 1), x
        # there and back: else its gradient has the strides of channels last, which DistributedDataParallel must copy
        weight = self.weight.squeeze(1).unsqueeze(1)
        convolved, residual = _DepthwiseConv2d.apply(image, weight, self.bias, padding)
        return convolved.permute(0, 2, 3, 1), residual.permute(0, 2, 3, 1)


class _DepthwiseConv2d(Function):
    """A convolution of images (B, C, T, F) with weight (C, 1, W, W) and bias (C,), and the images themselves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: tuple[int, int]) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return F.conv2d(x, weight, bias, padding=padding, groups=weight.shape[0]), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, d_residual: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        # autocast ends before the backward pass; under it the gradient has 16 bits, x and the weights 32
        inputs, flipped = x.to(gradient.dtype), weight.flip(2, 3).to(gradient.dtype)
        around = [width - 1 - padding for width, padding in zip(weight.shape[2:], ctx.padding, strict=True)]
        d_weight = conv2d_weight(inputs, weight.shape, gradient, padding=ctx.padding, groups=weight.shape[0])
        # a depthwise convolution too, with the kernel flipped
        d_x = F.conv2d(gradient, flipped, padding=around, groups=weight.shape[0])
        # this sum takes a fifth of the time that it takes with the gradient of the weight
        d_bias = gradient.permute(0, 2, 3, 1).flatten(0, 2).sum(dim=0)
        # autograd would add the two gradients of x into a third tensor of the largest size there is
        return d_x.to(x.dtype).add_(d_residual), d_weight, d_bias, None


def mlp(
    x: Tensor, hidden: nn.Linear, swoosh: Swoosh, output: nn.Linear, mask: Tensor | None, bounds: Tensor | None
) -> Tensor:
    """Return output(swoosh(hidden(x))) · mask; the hidden layer is computed again in the backward pass.

    Args:
        x: (N, D); ``hidden`` maps D to H, ``output`` H to E.
        mask: (N, 1) factors, or None.
        bounds: (4,) in which a balancer keeps the hidden layer; None: it does not work in this pass.

    Returns:
        (N, E).
    """
    parameters = hidden.weight, hidden.bias, output.weight, output.bias
    result: Tensor = _Mlp.apply(x, *parameters, mask, swoosh, bounds)
    return result


class _Mlp(Function):
    """`mlp`: x (N, D), weights and biases (H, D), (H,), (E, H), (E,), mask (N, 1), swoosh, bounds (4,) → (N, E)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
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


MIN_FRAMES = 9  # of which one remains
FIRST_GRAD_SCALE = 0.2  # large gradients of the first convolution would overflow in 16 bits


def halved_frames(num_frames: Tensor) -> Tensor:
    """Return how many of ``num_frames`` frames remain; any integer shape."""
    return torch.div(num_frames - 7, 2, rounding_mode="floor").clamp(min=0)


class ZipformerSubsampling(nn.Module):
    """Three convolutions, one of which halves the frame rate, a ConvNeXt layer and a projection.

    The convolutions are not padded in time. The ConvNeXt layer is padded with zeros after the end of each utterance, so
    that the result depends on nothing else in the batch.

    Args:
        num_features: mel bins F, at least 7.
        embed_dim: width D.
        channels: of the three convolutions.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
        Differs: the authors' convolution sees padding after the shorter utterances of a batch.
    """

    def __init__(
        self,
        batch_count: BatchCount,
        num_features: int,
        embed_dim: int,
        dropout: FloatLike,
        channels: Sequence[int],
    ) -> None:
        super().__init__()
        self.batch_count = batch_count
        self.limits = batch_count.register(*limits(batch_count, -LOG_SCALE_LIMIT, LOG_SCALE_LIMIT))
        first, second, third = channels
        self.conv1 = nn.Conv2d(1, first, 3, padding=(0, 1))
        self.balancer1 = Balancer(batch_count, 0.05, 0.95, 0.2, 1.0)
        self.conv2 = nn.Conv2d(first, second, 3, stride=2)
        self.balancer2 = Balancer(batch_count, 0.05, 0.95, 0.2, 4.0)
        self.conv3 = nn.Conv2d(second, third, 3, stride=(1, 2))
        self.balancer3 = Balancer(batch_count, 0.05, 0.95, 0.2, 4.0)
        self.convnext = ConvNeXt(batch_count, third)
        num_bins = ((num_features - 1) // 2 - 1) // 2
        self.image_shape = (num_bins, third)
        self.out = nn.Linear(third * num_bins, embed_dim)
        self.out_whiten = Whiten(
            batch_count, ScheduledFloat(batch_count, (0.0, 4.0), (20_000.0, 8.0)), gradient_scale=0.02
        )
        self.out_norm = BiasNorm(embed_dim)
        self.dropout = SharedDropout(batch_count, dropout)

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Subsample.

        Args:
            features: (B, T, F); padding may hold any finite value.
            num_frames: (B,) int64 valid frames; fewer than 9 give none.

        Returns:
            Vectors (B, T', D) and their valid lengths (B,).
        """
        x, lengths = self._image(padded_to(MIN_FRAMES, features), num_frames)
        limits = self.batch_count.values[self.limits] if self.training else None
        return self.dropout(self.out_norm(self.out_whiten(self._project(self.convnext(x))), limits)), lengths

    def stream(self, features: Tensor, num_frames: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Subsample a chunk.

        Args:
            features: (B, T, F), with what the chunk sees of the next.
            num_frames: (B,) int64 valid frames.
            past: (B, 3, F', C), from the chunk before.

        Returns:
            Vectors (B, T' − 3, D), and what the next chunk needs (B, 3, F', C).
        """
        image, _ = self._image(features, num_frames)
        x, new_past = self.convnext.stream(image, past)
        return self.out_norm(self._project(x)), new_past

    def _image(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, T', F', C), 0 where padded, and lengths (B,)."""
        # what balancing counts of padding must not be what happens to be there
        features = features.masked_fill(_after(num_frames, features.shape[1]).unsqueeze(2), 0.0)
        lengths = halved_frames(num_frames)
        return self._convolve(features.unsqueeze(1), lengths).permute(0, 2, 3, 1), lengths

    def _project(self, x: Tensor) -> Tensor:
        """Map (B, T, F', C) to (B, T, D)."""
        if is_tracing():
            # weights as they are: a quantizer finds constants only
            return self.out(x.transpose(2, 3).flatten(2))
        # the weights are ordered by channel, then by frequency; reordering x would copy a far larger tensor
        weight = self.out.weight.unflatten(1, (x.shape[3], -1)).transpose(1, 2).flatten(1)
        return F.linear(x.flatten(2), weight, self.out.bias)

    def _convolve(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map (B, 1, T, F) to (B, C, T', F'), with channels last in memory, and 0 after the lengths (B,)."""
        if self.training:
            weight, bias = (scale_grad(p, FIRST_GRAD_SCALE) for p in self.conv1.parameters())
            x = F.conv2d(scale_grad(x, FIRST_GRAD_SCALE), weight, bias, padding=self.conv1.padding)
        else:
            x = self.conv1(x)
        # all that follows works on channels: here they become neighbors in memory, and stay so
        x = x.contiguous(memory_format=torch.channels_last)
        x = SWOOSH_R(_on_channels(self.balancer1, x))
        x = SWOOSH_R(_on_channels(self.balancer2, self.conv2(x)))
        x = _on_channels(self.balancer3, self.conv3(x))
        # 0 after the end, because the ConvNeXt layer sees 3 frames ahead
        return SWOOSH_R(x, _after(lengths, x.shape[2])[:, None, :, None])


def _on_channels(balancer: Balancer, x: Tensor) -> Tensor:
    """Balance the channels of x (B, C, T, F)."""
    return balancer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _after(lengths: Tensor, num_frames: int) -> Tensor:
    """Return (B, T) true after the end of each utterance."""
    return torch.arange(num_frames, device=lengths.device) >= lengths.unsqueeze(1)
