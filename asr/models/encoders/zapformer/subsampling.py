"""The Zapformer's front end: three convolutions and a ConvNeXt layer, from 100 Hz to 50 Hz.

B batch, T frames, F frequencies, C channels, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.models.encoders.transformer import padded_to
from asr.models.encoders.zipformer.scaling import Mlp, Swoosh, scaled_linear
from asr.models.encoders.zipformer.subsampling import CONTEXT, KERNEL_SIZE, MIN_FRAMES, halved_frames
from asr.models.kernels import DepthwiseConv2d, at_least_float32, is_padding, is_tracing

SWASH_L = Swoosh(shift=1.0, offset=0.00875, beta=4.0)
SWASH_R = Swoosh(shift=0.25, offset=0.07831542175, beta=4.0)
BIAS_RANGE = 0.01
OUTPUT_SCALE = 0.15
MIN_ENERGY = 3e-8


class ConvNeXt(nn.Module):
    """x + a depthwise convolution over time and frequency, and two linear maps with three times the channels between.

    Args:
        causal: whether the convolution sees 6 frames before each, instead of 3 before and 3 after it.
    """

    def __init__(self, channels: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.depthwise_conv = DepthwiseConv2d(channels, KERNEL_SIZE)
        self.pointwise_conv1 = nn.Linear(channels, 3 * channels)
        self.pointwise_conv2 = nn.Linear(3 * channels, channels)

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """Apply the layer to x (B, T, F, C), which must be 0 where padded, and to the past (B, 6, F, C) before it."""
        if not self.causal:
            convolved, x = self.depthwise_conv(x)
        else:
            extended = F.pad(x, (0, 0, 0, 0, 2 * CONTEXT, 0)) if past is None else torch.cat((past, x), dim=1)
            convolved, _ = self.depthwise_conv(extended, pad_time=False)
        if is_tracing():
            return x + self.pointwise_conv2(SWASH_L(self.pointwise_conv1(convolved)))
        parameters = *self.pointwise_conv1.parameters(), *self.pointwise_conv2.parameters()
        return x + Mlp.apply(convolved.flatten(0, 2), *parameters, None, SWASH_L, None).view(x.shape)


class ZapformerSubsampling(nn.Module):
    """Three convolutions, one of which halves the frame rate, a ConvNeXt layer and a projection.

    The convolutions are not padded in time. A ConvNeXt layer that is not causal is padded with zeros after the end of
    each utterance, so that the result depends on nothing else in the batch.

    Args:
        num_features: mel bins F, at least 7.
        embed_dim: width D.
        channels: of the three convolutions.
        noise: added to the first convolution's output in training, relative to its root mean square in the utterance.
        causal: whether an output sees no later features than the convolutions need.
    """

    def __init__(self, num_features: int, embed_dim: int, channels: Sequence[int], noise: float, causal: bool) -> None:
        super().__init__()
        first, second, third = channels
        self.noise = noise
        self.conv1 = nn.Conv2d(1, first, 3, padding=(0, 1))
        self.conv2 = nn.Conv2d(first, second, 3, stride=2)
        self.conv3 = nn.Conv2d(second, third, 3, stride=(1, 2))
        self.convnext = ConvNeXt(third, causal)
        num_bins = ((num_features - 1) // 2 - 1) // 2
        self.past_shape = (2 * CONTEXT, num_bins, third)
        self.out = scaled_linear(third * num_bins, embed_dim, scale=1.0, bias_range=BIAS_RANGE)

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Subsample.

        Args:
            features: (B, T, F); padding may hold any finite value.
            num_frames: (B,) int64 valid frames; fewer than 9 give none.

        Returns:
            Vectors (B, T', D) and their valid lengths (B,).
        """
        x, lengths = self._image(padded_to(MIN_FRAMES, features), num_frames)
        return self._project(self.convnext(x)), lengths

    def stream(self, features: Tensor, num_frames: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Subsample a chunk.

        Args:
            features: (B, T, F), with what the chunk sees of the next.
            num_frames: (B,) int64 valid frames.
            past: (B, 6, F', C), from the chunk before.

        Returns:
            Vectors (B, T', D), and what the next chunk needs (B, 6, F', C).
        """
        image, _ = self._image(features, num_frames)
        return self._project(self.convnext(image, past)), torch.cat((past, image), dim=1)[:, -2 * CONTEXT :]

    def _image(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, T', F', C), 0 where padded, and lengths (B,)."""
        # no noise is made of padding
        features = features.masked_fill(is_padding(num_frames, features.shape[1]).unsqueeze(2), 0.0)
        lengths = halved_frames(num_frames)
        x = self.conv1(features.unsqueeze(1)).contiguous(memory_format=torch.channels_last)
        if self.training and self.noise:
            x = self._noisy(x, num_frames - 2)
        x = self.conv3(SWASH_R(self.conv2(SWASH_R(x))))
        # 0 after the end, because the ConvNeXt layer sees 3 frames ahead
        return SWASH_R(x, is_padding(lengths, x.shape[2])[:, None, :, None]).permute(0, 2, 3, 1), lengths

    def _noisy(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Add noise to x (B, C, T, F), whose root mean square is that of its valid ``lengths`` (B,)."""
        valid = ~is_padding(lengths, x.shape[2])
        size, channels, _, num_bins = x.shape
        energy = torch.linalg.vector_norm(x, dim=(1, 3)).square() / (channels * num_bins)
        rms = ((energy * valid).sum(dim=1) / lengths.clamp(min=1) + MIN_ENERGY).sqrt()
        # channels last as in x, but contiguous when it is drawn: else a CPU takes eight times as long
        noise = torch.randn(size, x.shape[2], num_bins, channels, dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)
        return torch.addcmul(x, noise, (rms * self.noise)[:, None, None, None].to(x.dtype))

    def _project(self, x: Tensor) -> Tensor:
        """Map (B, T, F', C) to (B, T, D)."""
        # in 32 bits under autocast too: all stacks add to this
        return OUTPUT_SCALE * at_least_float32(self.out(x.transpose(2, 3).flatten(2)))
