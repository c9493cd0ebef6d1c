"""Convolutional subsampling by four in time, or by two.

B batch, T frames, F mel bins, C channels, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
