"""Depthwise convolution over time and frequency.

B batch, T frames, F frequencies, C channels.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.grad import conv2d_weight


class _Beside(Function):
    """A convolution of pictures (B, C, T, F), and the pictures themselves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: tuple[int, int]) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return F.conv2d(x, weight, bias, padding=padding, groups=weight.shape[0]), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, d_beside: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        # under autocast, which ends before the backward pass, the gradient has 16 bits
        inputs, backwards = x.to(gradient.dtype), weight.flip(2, 3).to(gradient.dtype)
        around = [width - 1 - padding for width, padding in zip(weight.shape[2:], ctx.padding, strict=True)]
        d_weight = conv2d_weight(inputs, weight.shape, gradient, padding=ctx.padding, groups=weight.shape[0])
        d_x = F.conv2d(gradient, backwards, padding=around, groups=weight.shape[0])
        # this sum takes a fifth of the time that it takes with the gradient of the weight
        d_bias = gradient.permute(0, 2, 3, 1).flatten(0, 2).sum(dim=0)
        return d_x.to(x.dtype).add_(d_beside), d_weight, d_bias, None


class PictureConvolution(nn.Conv2d):
    """Convolves each channel with a square kernel of its own, and keeps the size of the picture."""

    def __init__(self, channels: int, kernel_width: int) -> None:
        super().__init__(channels, channels, kernel_width, groups=channels)

    def forward(self, x: Tensor, pad_time: bool = True) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Convolve x (B, T, F, C), with zeros around it; without ``pad_time`` beside it alone.

        Returns:
            (B, T, F, C) convolved, and x itself to be used beside it: the gradients of both add up in place.
        """
        around = self.kernel_size[0] // 2
        # there and back: else its gradient has the strides of channels last, which data-parallel training has to copy
        weight = self.weight.squeeze(1).unsqueeze(1)
        padding = (around if pad_time else 0, around)
        convolved, beside = _Beside.apply(x.permute(0, 3, 1, 2), weight, self.bias, padding)
        return convolved.permute(0, 2, 3, 1), beside.permute(0, 2, 3, 1)
