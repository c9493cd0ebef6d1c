"""Pre-norm transformer encoder with rotary positions.

B batch, T frames, F mel bins, D width, H heads, K head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.models.subsampling import ConvSubsampling, output_frames


class RotaryPositions(nn.Module):
    """Rotates pairs of channels by angles that grow with the frame index, so that attention sees distances only.

    Reference:
        Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.4.2, equation 34.
        Differs: the two halves of a head form the pairs, instead of neighbouring channels.
    """

    def __init__(self, head_width: int, base: float = 10_000.0) -> None:
        super().__init__()
        inverse = base ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
        self.register_buffer("inverse_wavelength", inverse, persistent=False)
        self.inverse_wavelength: Tensor

    def forward(self, num_frames: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each (T, K/2), in float32."""
        positions = torch.arange(num_frames, device=self.inverse_wavelength.device, dtype=torch.float32)
        angles = torch.outer(positions, self.inverse_wavelength.float())
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate queries or keys (B, H, T, K) by the angles of their frames."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention over valid frames."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Attend; x (B, T, D), mask (B, 1, 1, T) true where a frame may be attended to."""
        batch, frames, width = x.shape
        heads = self.query_key_value(x).view(batch, frames, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key = rotate(heads[0], *positions), rotate(heads[1], *positions)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, heads[2], attn_mask=mask, dropout_p=dropout)
        return self.output(attended.transpose(1, 2).reshape(batch, frames, width))


class FeedForward(nn.Sequential):
    """Two linear maps around a GELU."""

    def __init__(self, d_model: int, d_feedforward: int, dropout: float) -> None:
        super().__init__(
            nn.Linear(d_model, d_feedforward),
            nn.GELU(),
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
        """Apply the layer; shapes as in `SelfAttention`."""
        x = x + self.dropout(self.attention(self.attention_norm(x), mask, positions))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class TransformerEncoder(nn.Module):
    """Convolutional subsampling by four, then pre-norm transformer layers with rotary positions.

    An utterance's encoding depends neither on padding nor on the other utterances of its batch.

    Args:
        num_features: mel bins F of a frame.
        d_model: width D, a multiple of ``2 * num_heads``.
        num_layers: transformer layers, at least 1.
        num_heads: attention heads H.
        d_feedforward: hidden width of the feed-forward modules.
        dropout: probability in [0, 1), in training.
        subsampling_channels: channels of the convolutions.

    Raises:
        ValueError: an argument is out of its range.
    """

    subsampling_factor = 4

    def __init__(
        self,
        num_features: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        d_feedforward: int,
        dropout: float = 0.1,
        subsampling_channels: int = 32,
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
        if d_model % (2 * num_heads):
            raise ValueError(f"d_model must be a multiple of 2 * num_heads = {2 * num_heads}, given {d_model}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), given {dropout}")
        self.d_model = d_model
        self.subsampling = ConvSubsampling(num_features, d_model, subsampling_channels, dropout)
        self.positions = RotaryPositions(d_model // num_heads)
        self.layers = nn.ModuleList(
            TransformerLayer(d_model, num_heads, d_feedforward, dropout) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)

    def output_frames(self, num_frames: Tensor) -> Tensor:
        """Return the number of encodings of utterances of ``num_frames`` frames."""
        return output_frames(num_frames)

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features at a quarter of their rate.

        Args:
            features: (B, T, F); padding may hold any finite value.
            num_frames: (B,) int64 valid frames; fewer than 7 leave no encoding.

        Returns:
            Encodings (B, T', D), unspecified where padded, and their valid lengths (B,), in 40 ms frames.
        """
        x, lengths = self.subsampling(features, num_frames)
        frames = torch.arange(x.shape[1], device=x.device)
        # the first frame is always attended to: a softmax over nothing would be NaN
        mask = (frames < lengths.clamp(min=1).unsqueeze(1))[:, None, None, :]
        positions = self.positions(x.shape[1])
        for layer in self.layers:
            x = layer(x, mask, positions)
        return self.norm(x), lengths
