"""Pre-norm transformer encoder with rotary positions.

B batch, T frames, D width, H heads, K width of a head.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from asr.models.encoders.conv_subsampling import SubsamplingFactor
from asr.models.encoders.layered import LayeredEncoder, rotate
from asr.options import Probability


class SelfAttention(nn.Module):
    """Multi-head self-attention over valid frames."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)

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


class TransformerEncoder(LayeredEncoder):
    """Convolutional subsampling, then pre-norm transformer layers with rotary positions.

    Arguments and what they must be are those of `LayeredEncoder`.
    """

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
        size = num_features, d_model, num_layers, num_heads, d_feedforward
        super().__init__(*size, dropout, subsampling_channels, subsampling_factor)
        self.layers = nn.ModuleList(
            TransformerLayer(d_model, num_heads, d_feedforward, dropout) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)
