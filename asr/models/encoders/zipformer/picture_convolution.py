"""Depthwise convolution over time and frequency.

B batch, T frames, F frequencies, C channels.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PictureConvolution(nn.Conv2d):
    """Convolves each channel with a square kernel of its own, and keeps the size of the picture."""

    def __init__(self, channels: int, kernel_width: int) -> None:
        super().__init__(channels, channels, kernel_width, groups=channels)

    def forward(self, x: Tensor, pad_time: bool = True) -> Tensor:
        """Convolve x (B, T, F, C), with zeros around it; without ``pad_time`` beside it alone."""
        around = self.kernel_size[0] // 2
        picture = x.permute(0, 3, 1, 2)
        # there and back: else its gradient has the strides of channels last, which data-parallel training has to copy
        weight = self.weight.squeeze(1).unsqueeze(1)
        return F.conv2d(
            picture, weight, self.bias, padding=(around if pad_time else 0, around), groups=self.groups
        ).permute(0, 2, 3, 1)
