"""The base of encoders whose layers have one width and see rotary positions, after a subsampling of time.

B batch, T frames, F mel bins, D width, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from asr.models.encoders.conv_subsampling import ConvSubsampling, SubsamplingFactor
from asr.options import Probability


class RotaryPositions(nn.Module):
    """Rotates pairs of channels by angles that grow with the frame index, so that attention sees distances only.

    Reference:
        Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.4.2, equation 34.
        Differs: the two halves of a head form the pairs, instead of neighboring channels.
    """

    def __init__(self, head_width: int, base: float = 10_000.0) -> None:
        super().__init__()
        inverse = base ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
        # not saved: it follows from the options
        self.register_buffer("inverse_wavelength", inverse, persistent=False)
        self.inverse_wavelength: Tensor

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


class LayeredEncoder(nn.Module):
    """Convolutional subsampling, then layers that see rotary positions. A subclass adds the layers.

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

    can_be_captured = True  # by CUDA graphs, in training
    layers: nn.ModuleList
    norm: nn.Module

    def __init__(
        self,
        num_features: int,
        d_model: PositiveInt,
        num_layers: PositiveInt,
        num_heads: PositiveInt,
        d_feedforward: PositiveInt,
        dropout: Probability,
        subsampling_channels: PositiveInt,
        subsampling_factor: SubsamplingFactor,
    ) -> None:
        super().__init__()
        if d_model % (2 * num_heads):
            raise ValueError(f"d_model must be a multiple of 2 * num_heads = {2 * num_heads}, given {d_model}")
        self.d_model, self.num_layers, self.subsampling_factor = d_model, num_layers, subsampling_factor
        self.subsampling = ConvSubsampling(num_features, d_model, subsampling_channels, dropout, subsampling_factor)
        self.positions = RotaryPositions(d_model // num_heads)

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
