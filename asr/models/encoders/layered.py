"""The base of encoders whose layers have one width and follow a subsampling of time.

B batch, T frames, F mel bins, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from asr.models.encoders.rotary import RotaryPositions
from asr.models.subsampling import ConvSubsampling

MAX_HEADS, MAX_CHANNELS, MAX_FEEDFORWARD = 64, 1024, 64  # the last for each channel of d_model


class LayeredEncoder(nn.Module):
    """Convolutional subsampling, then layers that see rotary positions. A subclass adds the layers.

    An utterance's encoding depends neither on padding nor on the other utterances of its batch.

    Args:
        num_features: mel bins F of a frame.
        d_model: width D, a multiple of ``2 * num_heads``.
        num_layers: at least 1.
        num_heads: attention heads H, at most 64.
        d_feedforward: hidden width of the feed-forward modules, at most ``64 * d_model``.
        dropout: probability in [0, 1), in training.
        subsampling_channels: channels of the convolutions, at most 1024.
        subsampling_factor: frames of features for each encoding, 4 or 2.

    Attributes:
        layers: each maps (B, T, D), a mask (B, 1, 1, T), true where a frame is valid, and positions to (B, T, D).
        norm: applied to the output of a layer before the encoder returns it.

    Raises:
        ValueError: an argument is out of its range.
    """

    layers: nn.ModuleList
    norm: nn.Module

    def __init__(
        self,
        num_features: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        d_feedforward: int,
        dropout: float,
        subsampling_channels: int,
        subsampling_factor: int,
    ) -> None:
        super().__init__()
        for name, value in (
            ("num_features", num_features),
            ("d_model", d_model),
            ("num_layers", num_layers),
            ("num_heads", num_heads),
            ("d_feedforward", d_feedforward),
            ("subsampling_channels", subsampling_channels),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, given {value}")
        # the number of parameters does not bound these, so a small checkpoint could take all memory: attention takes
        # some for each head, whatever its width, and a narrow input may become wide inside
        for name, value, most in (
            ("num_heads", num_heads, MAX_HEADS),
            ("d_feedforward", d_feedforward, MAX_FEEDFORWARD * d_model),
            ("subsampling_channels", subsampling_channels, MAX_CHANNELS),
        ):
            if value > most:
                why = f", {MAX_FEEDFORWARD} times d_model={d_model}" if name == "d_feedforward" else ""
                raise ValueError(f"{name} must be at most {most}{why}, given {value}")
        if d_model % (2 * num_heads):
            raise ValueError(f"d_model must be a multiple of 2 * num_heads = {2 * num_heads}, given {d_model}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), given {dropout}")
        self.d_model, self.num_layers, self.subsampling_factor = d_model, num_layers, subsampling_factor
        self.subsampling = ConvSubsampling(num_features, d_model, subsampling_channels, dropout, subsampling_factor)
        self.positions = RotaryPositions(d_model // num_heads)

    def output_frames(self, num_frames: Tensor) -> Tensor:
        """Return the number of encodings of utterances of ``num_frames`` frames."""
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
            features: as in `forward`.
            num_frames: as in `forward`.
            numbers: of inner layers, from 1 to ``num_layers - 1``.

        Returns:
            Encodings (B, T', D) of each of those layers, in ascending order, then of the last; and their lengths.
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
