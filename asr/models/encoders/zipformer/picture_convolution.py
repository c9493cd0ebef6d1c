"""Depthwise convolution over time and frequency.

B batch, T frames, F frequencies, C channels.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PictureConvolution(nn.Conv2d):
    """Convolves each channel with a square kernel of its own, and keeps the size of the picture."""

    def __init__(self, channels: int, kernel_width: int) -> None:
        super().__init__(channels, channels, kernel_width, padding=kernel_width // 2, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x (B, T, F, C)."""
        picture = x.permute(0, 3, 1, 2)
        return F.conv2d(picture, self.weight, self.bias, padding=self.padding, groups=self.groups).permute(0, 2, 3, 1)
