"""Transformer encoder: convolutional subsampling, the layers that encoders share, self-attention.

B batch, T frames, F mel bins, C channels, D width, H heads, K width of a head.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from asr.ranges import Probability

KERNEL = 3
SubsamplingFactor = Literal[2, 4]
STRIDES = {4: (2, 2), 2: (2, 1)}  # in time, of both convolutions, by the factor of subsampling


def padded_to(min_frames: int, features: Tensor) -> Tensor:
    """Return features (B, T, F), with zeros after them if they are shorter than ``min_frames``."""
    # a convolution refuses an input that is shorter than its kernel
    missing = min_frames - features.shape[1]
    # a traced number is a tensor, of which `max` would keep the value
    missing = missing.clamp(min=0) if isinstance(missing, Tensor) else max(0, missing)
    return F.pad(features, (0, 0, 0, missing))


class ConvSubsampling(nn.Module):
    """Two 3×3 convolutions and a projection: features at 100 Hz become vectors at 25 Hz, or at 50 Hz.

    The convolutions are not padded in time. So a valid output frame reads only valid input frames, and the result does
    not depend on padding.

    Args:
        num_features: mel bins F of a frame.
        d_model: width D of the vectors.
        channels: C of the convolutions.
        dropout: probability in [0, 1), in training.
        factor: 4, or 2 for tokens that are fast: CTC needs a vector for each of them.

    Reference:
        Dong et al. 2018, "Speech-Transformer" (two 3×3 stride-2 convolutions before the encoder).
        Differs: no padding in time; by two if asked.
    """

    min_frames = 7  # of which both convolutions make one vector, with either factor

    def __init__(
        self, num_features: int, d_model: int, channels: int, dropout: float = 0.0, factor: SubsamplingFactor = 4
    ) -> None:
        super().__init__()
        self.strides = STRIDES[factor]
        first, second = self.strides
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, KERNEL, (first, 2), padding=(0, 1)),
            nn.GELU(),
            nn.Conv2d(channels, channels, KERNEL, (second, 2), padding=(0, 1)),
            nn.GELU(),
        )
        num_bins = (num_features + 3) // 4  # padded by one bin on each side, halved twice

        self.project = nn.Linear(channels * num_bins, d_model)
        self.dropout = nn.Dropout(dropout)

    def output_frames(self, num_frames: Tensor) -> Tensor:
        """Return how many vectors ``num_frames`` frames give; any integer shape."""
        for stride in self.strides:
            num_frames = torch.div(num_frames - KERNEL, stride, rounding_mode="floor") + 1
        return num_frames.clamp(min=0)

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Subsample.

        Args:
            features: (B, T, F); padding may hold any finite value.
            num_frames: (B,) int64 valid frames; fewer than ``min_frames`` give none.

        Returns:
            Vectors (B, T', D) and their valid lengths (B,).
        """
        features = padded_to(self.min_frames, features)
        hidden = self.convolutions(features.unsqueeze(1))  # (B, C, T', F')
        hidden = self.project(hidden.transpose(1, 2).flatten(2))
        return self.dropout(hidden), self.output_frames(num_frames)


class RotaryPositions(nn.Module):
    """Rotates pairs of channels by angles that grow with the frame index, so that attention sees distances only.

    Reference:
        Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.4.2, equation 34.
        Differs: the two halves of a head form the pairs, instead of neighboring channels.
    """

    def __init__(self, head_width: int) -> None:
        super().__init__()
        inverse = 10_000.0 ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
        # not saved: it follows from the options
        self.inverse_wavelength = nn.Buffer(inverse, persistent=False)

    def forward(self, num_frames: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each (T, K/2), in float32."""
        positions = torch.arange(num_frames, device=self.inverse_wavelength.device, dtype=torch.float32)
        # in 32 bits also in a model of 16: those cannot count to 257
        angles = torch.outer(positions, self.inverse_wavelength.float())
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate queries or keys (…, T, K) by the angles of their frames, whose cosines and sines are (T, K/2)."""
    # in 16 bits the rounding would depend on the position
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention over valid frames."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)
        self.matrix_blocks = {"query_key_value.weight": {"blocks": 3, "heads": num_heads}}

    def forward(self, x: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Attend; x (B, T, D), mask (B, 1, 1, T) true where a frame may be attended to, positions (T, K/2) each."""
        batch, frames, width = x.shape
        # one matrix product for all three; (3, B, H, T, K)
        heads = self.query_key_value(x).view(batch, frames, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key = rotate(heads[:2], *positions)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, heads[2], attn_mask=mask, dropout_p=dropout)
        return self.output(attended.transpose(1, 2).reshape(batch, frames, width))


class FeedForward(nn.Sequential):
    """Two linear maps around an activation."""

    def __init__(self, d_model: int, d_feedforward: int, dropout: float, activation: type[nn.Module] = nn.GELU) -> None:
        super().__init__(
            nn.Linear(d_model, d_feedforward),
            activation(),
            nn.Dropout(dropout),
            nn.Linear(d_feedforward, d_model),
        )


class TransformerLayer(nn.Module):
    """x + attention(norm x), then x + feed-forward(norm x).

    Reference:
        Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture", arXiv:2002.04745, figure 1 (b).
    """

    def __init__(self, d_model: int, num_heads: int, d_feedforward: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = SelfAttention(d_model, num_heads, dropout)
        self.feedforward_norm = nn.LayerNorm(d_model)
        self.feedforward = FeedForward(d_model, d_feedforward, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Apply the layer to x (B, T, D); mask and positions as in `SelfAttention`."""
        x = x + self.dropout(self.attention(self.attention_norm(x), mask, positions))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class TransformerEncoder(nn.Module):
    """Convolutional subsampling, then pre-norm transformer layers with rotary positions.

    An utterance's encoding depends neither on padding nor on the other utterances of its batch.

    Args:
        num_features: mel bins F of a frame.
        d_model: width D, a multiple of ``2 * num_heads``.
        num_layers: at least 1.
        num_heads: attention heads H.
        d_feedforward: hidden width of the feed-forward modules.
        dropout: probability in [0, 1), in training.
        subsampling_channels: channels of the convolutions.
        subsampling_factor: frames of features for each encoding, 4 or 2.

    Attributes:
        layers: each maps (B, T, D), a mask (B, 1, 1, T), true where a frame is valid, and positions to (B, T, D).
        norm: applied to the output of a layer before the encoder returns it.

    Raises:
        ValueError: ``2 * num_heads`` does not divide ``d_model``.
    """

    supports_cuda_graphs = True  # in training
    norm: nn.Module

    def __init__(
        self,
        num_features: int,
        d_model: PositiveInt,
        num_layers: PositiveInt,
        num_heads: PositiveInt,
        d_feedforward: PositiveInt,
        dropout: Probability = 0.1,
        subsampling_channels: PositiveInt = 32,
        subsampling_factor: SubsamplingFactor = 4,
    ) -> None:
        super().__init__()
        if d_model % (2 * num_heads):
            raise ValueError(f"d_model must be a multiple of 2 * num_heads = {2 * num_heads}, given {d_model}")
        self.d_model, self.num_layers, self.subsampling_factor = d_model, num_layers, subsampling_factor
        self.subsampling = ConvSubsampling(num_features, d_model, subsampling_channels, dropout, subsampling_factor)
        self.positions = RotaryPositions(d_model // num_heads)
        self.layers = nn.ModuleList(
            self.new_layer(d_model, num_heads, d_feedforward, dropout) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)

    def new_layer(self, d_model: int, num_heads: int, d_feedforward: int, dropout: float) -> nn.Module:
        """Return a layer with random weights."""
        return TransformerLayer(d_model, num_heads, d_feedforward, dropout)

    @property
    def layers_to_compile(self) -> nn.ModuleList:
        """What ``trainer.compile=true`` compiles, one by one."""
        return self.layers

    def output_frames(self, num_frames: Tensor) -> Tensor:
        """Return the numbers of encodings (B,) of utterances of ``num_frames`` (B,) frames."""
        return self.subsampling.output_frames(num_frames)

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features at a quarter of their rate, or at half of it.

        Args:
            features: (B, T, F); padding may hold any finite value.
            num_frames: (B,) int64 valid frames; fewer than 7 give no encoding.

        Returns:
            Encodings (B, T', D), unspecified where padded, and their valid lengths (B,).
        """
        (encodings,), lengths = self.encode_layers(features, num_frames, ())
        return encodings, lengths

    def encode_layers(
        self, features: Tensor, num_frames: Tensor, numbers: Collection[int]
    ) -> tuple[list[Tensor], Tensor]:
        """Encode features, and return what an encoder that ends with each of some layers would return.

        Args:
            features: (B, T, F), as in `forward`.
            num_frames: (B,), as in `forward`.
            numbers: of inner layers, from 1 to ``num_layers - 1``.

        Returns:
            Encodings (B, T', D) of each of those layers, in ascending order, then of the last; and their lengths (B,).
        """
        x, lengths = self.subsampling(features, num_frames)
        frames = torch.arange(x.shape[1], device=x.device)
        # the first frame is always attended to, also in an empty utterance: a softmax over nothing would be NaN, and
        # NaN passes through every later mask
        mask = (frames < lengths.clamp(min=1).unsqueeze(1))[:, None, None, :]
        positions = self.positions(x.shape[1])
        outputs = []
        for number, layer in enumerate(self.layers, start=1):
            x = layer(x, mask, positions)
            if number in numbers or number == self.num_layers:
                outputs.append(self.norm(x))
        return outputs, lengths
