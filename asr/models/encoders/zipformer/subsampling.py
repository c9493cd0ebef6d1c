"""The Zipformer's front end: three convolutions and a ConvNeXt layer, from 100 Hz to 50 Hz.

B batch, T frames, F frequencies, C channels, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.models.encoders.transformer import padded_to
from asr.models.encoders.zipformer import scaling, schedules
from asr.models.kernels import DepthwiseConv2d, is_padding, is_tracing

KERNEL_SIZE = 7
CONTEXT = KERNEL_SIZE // 2  # frames seen on each side
MIN_FRAMES = 9  # of which one remains
FIRST_GRAD_SCALE = 0.2  # large gradients of the first convolution would overflow in 16 bits


class ConvNeXt(nn.Module):
    """x + a depthwise convolution over time and frequency, and two linear maps with three times the channels between.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230, which takes it from Liu et al. 2022, "A ConvNet for the 2020s",
        arXiv:2201.03545. Differs: no normalization, and SwooshL.
    """

    def __init__(self, batch_count: schedules.BatchCount, channels: int) -> None:
        super().__init__()
        self.depthwise_conv = DepthwiseConv2d(channels, KERNEL_SIZE)
        self.pointwise_conv1 = nn.Linear(channels, 3 * channels)
        self.hidden_balancer = scaling.Balancer(batch_count, 0.3, 1.0, 0.75, 5.0)
        self.pointwise_conv2 = scaling.scaled_linear(3 * channels, channels, scale=0.01)
        self.out_balancer = scaling.Balancer(batch_count, 0.4, 0.6, 1.0, 6.0)
        self.out_whiten = scaling.Whiten(batch_count, 5.0)
        self.layerdrop_rate = schedules.ScheduledFloat(batch_count, (0.0, 0.2), (20_000.0, 0.015))
        self.batch_count, self.rate = batch_count, batch_count.register(self.layerdrop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (B, T, F, C), which must be 0 where padded."""
        mask = None
        if self.training:
            keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.batch_count.values[self.rate]
            mask = keep.to(x.dtype)
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
            return self.pointwise_conv2(scaling.SWOOSH_L(self.pointwise_conv1(x)))
        # asked here, because inside of `mlp` nothing requires a gradient
        trained = torch.is_grad_enabled() and (x.requires_grad or self.pointwise_conv1.weight.requires_grad)
        bounds = self.hidden_balancer.active_bounds(trained)
        if mask is not None:
            mask = mask.expand(-1, *x.shape[1:3]).reshape(-1, 1)
        rows, parameters = x.flatten(0, 2), (*self.pointwise_conv1.parameters(), *self.pointwise_conv2.parameters())
        return scaling.Mlp.apply(rows, *parameters, mask, scaling.SWOOSH_L, bounds).view(x.shape)


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
        batch_count: schedules.BatchCount,
        num_features: int,
        embed_dim: int,
        dropout: schedules.FloatLike,
        channels: Sequence[int],
    ) -> None:
        super().__init__()
        self.batch_count = batch_count
        self.limits = batch_count.register(
            *schedules.limits(batch_count, -scaling.LOG_SCALE_LIMIT, scaling.LOG_SCALE_LIMIT)
        )
        first, second, third = channels
        self.conv1 = nn.Conv2d(1, first, 3, padding=(0, 1))
        self.balancer1 = scaling.Balancer(batch_count, 0.05, 0.95, 0.2, 1.0)
        self.conv2 = nn.Conv2d(first, second, 3, stride=2)
        self.balancer2 = scaling.Balancer(batch_count, 0.05, 0.95, 0.2, 4.0)
        self.conv3 = nn.Conv2d(second, third, 3, stride=(1, 2))
        self.balancer3 = scaling.Balancer(batch_count, 0.05, 0.95, 0.2, 4.0)
        self.convnext = ConvNeXt(batch_count, third)
        num_bins = ((num_features - 1) // 2 - 1) // 2
        self.past_shape = (CONTEXT, num_bins, third)
        self.out = nn.Linear(third * num_bins, embed_dim)
        self.out_whiten = scaling.Whiten(batch_count, 4.0, ratio=2.0, gradient_scale=0.02)
        self.out_norm = scaling.BiasNorm(embed_dim)
        self.dropout = scaling.SharedDropout(batch_count, dropout)

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
        features = features.masked_fill(is_padding(num_frames, features.shape[1]).unsqueeze(2), 0.0)
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
            weight, bias = (scaling.scale_grad(p, FIRST_GRAD_SCALE) for p in self.conv1.parameters())
            x = F.conv2d(scaling.scale_grad(x, FIRST_GRAD_SCALE), weight, bias, padding=self.conv1.padding)
        else:
            x = self.conv1(x)
        # all that follows works on channels: here they become neighbors in memory, and stay so
        x = x.contiguous(memory_format=torch.channels_last)
        x = scaling.SWOOSH_R(_on_channels(self.balancer1, x))
        x = scaling.SWOOSH_R(_on_channels(self.balancer2, self.conv2(x)))
        x = _on_channels(self.balancer3, self.conv3(x))
        # 0 after the end, because the ConvNeXt layer sees 3 frames ahead
        return scaling.SWOOSH_R(x, is_padding(lengths, x.shape[2])[:, None, :, None])


def _on_channels(balancer: scaling.Balancer, x: Tensor) -> Tensor:
    """Balance the channels of x (B, C, T, F)."""
    return balancer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
