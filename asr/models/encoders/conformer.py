"""Conformer encoder: attention for distant frames, convolution for near ones.

B batch, T frames, D width, W kernel width.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from asr.models.encoders.transformer import FeedForward, SelfAttention, SubsamplingFactor, TransformerEncoder
from asr.models.kernels import DepthwiseConv1d
from asr.ranges import Probability


class ConvolutionModule(nn.Module):
    """A gate, a depthwise convolution over valid frames, a norm, an activation, between two linear maps.

    Reference:
        Gulati et al. 2020, arXiv:2005.08100, section 2.2.
        Differs: LayerNorm instead of BatchNorm, whose statistics include padding and the other utterances of a batch.
    """

    def __init__(self, d_model: int, kernel_width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, 2 * d_model)
        self.convolution = DepthwiseConv1d(d_model, kernel_width)
        self.norm = nn.LayerNorm(d_model)
        self.output = nn.Linear(d_model, d_model)
        self.matrix_blocks = {"gate.weight": {"blocks": 2}}

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """Convolve x (B, T, D) where ``valid`` (B, T, 1) is true; other frames count as zero."""
        # the convolution would carry padding into the last valid frames
        x = F.glu(self.gate(x), dim=-1).masked_fill(~valid, 0.0)
        return self.output(F.silu(self.norm(self.convolution(x))))


class ConformerLayer(nn.Module):
    """Half a feed-forward module, attention, convolution, half a feed-forward module, each added to x; then a norm.

    Reference:
        Gulati et al. 2020, arXiv:2005.08100, section 2.4, equation 1.
        Differs: rotary positions, and `ConvolutionModule`.
    """

    def __init__(self, d_model: int, num_heads: int, d_feedforward: int, kernel_width: int, dropout: float) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(d_model)
        self.first_feedforward = FeedForward(d_model, d_feedforward, dropout, nn.SiLU)
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = SelfAttention(d_model, num_heads, dropout)
        self.convolution_norm = nn.LayerNorm(d_model)
        self.convolution = ConvolutionModule(d_model, kernel_width)
        self.second_norm = nn.LayerNorm(d_model)
        self.second_feedforward = FeedForward(d_model, d_feedforward, dropout, nn.SiLU)
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Apply the layer to x (B, T, D); mask (B, 1, 1, T), true where valid, and positions as in `SelfAttention`."""
        valid = mask[:, 0, 0, :, None]
        x = x + 0.5 * self.dropout(self.first_feedforward(self.first_norm(x)))
        x = x + self.dropout(self.attention(self.attention_norm(x), mask, positions))
        x = x + self.dropout(self.convolution(self.convolution_norm(x), valid))
        x = x + 0.5 * self.dropout(self.second_feedforward(self.second_norm(x)))
        return self.norm(x)


class ConformerEncoder(TransformerEncoder):
    """Convolutional subsampling, then conformer layers.

    Args:
        num_features: mel bins F of a frame.
        d_model: width D, a multiple of ``2 * num_heads``.
        num_layers: conformer layers, at least 1.
        num_heads: attention heads.
        d_feedforward: hidden width of the feed-forward modules.
        kernel_width: encodings W that the convolutions see, odd.
        dropout: probability in [0, 1), in training.
        subsampling_channels: channels of the convolutions before the layers.
        subsampling_factor: frames of features for each encoding, 4 or 2.

    Raises:
        ValueError: ``2 * num_heads`` does not divide ``d_model``, or ``kernel_width`` is even.

    Reference:
        Gulati et al. 2020, "Conformer: Convolution-augmented Transformer for Speech Recognition", arXiv:2005.08100.
        Differs: rotary positions instead of Transformer-XL's, LayerNorm instead of BatchNorm, kernels of odd width.
    """

    def __init__(
        self,
        num_features: int,
        d_model: PositiveInt,
        num_layers: PositiveInt,
        num_heads: PositiveInt,
        d_feedforward: PositiveInt,
        kernel_width: PositiveInt = 31,
        dropout: Probability = 0.1,
        subsampling_channels: PositiveInt = 32,
        subsampling_factor: SubsamplingFactor = 4,
    ) -> None:
        self.kernel_width = kernel_width  # before the layers are made
        size = num_features, d_model, num_layers, num_heads, d_feedforward
        super().__init__(*size, dropout, subsampling_channels, subsampling_factor)
        self.norm = nn.Identity()  # a conformer layer ends with its own norm

    def new_layer(self, d_model: int, num_heads: int, d_feedforward: int, dropout: float) -> nn.Module:
        """Return a layer with random weights."""
        return ConformerLayer(d_model, num_heads, d_feedforward, self.kernel_width, dropout)
