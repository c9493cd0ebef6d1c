"""Depthwise convolution over time.

B batch, T frames, D channels, W kernel width.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.grad import conv2d_weight


def depthwise(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    """Convolve each channel with a kernel of its own.

    Args:
        x: (B, T, D).
        weight: (D, 1, W).
        bias: (D,).
        padding: zeros before the first and behind the last frame.

    Returns:
        (B, T + 2 · padding − W + 1, D).
    """
    if x.is_cuda:
        return F.conv1d(x.transpose(1, 2), weight, bias, padding=padding, groups=x.shape[2]).transpose(1, 2)
    convolved: Tensor = _Depthwise.apply(x, weight, bias, padding)
    return convolved


class _Depthwise(Function):
    """On a CPU: pictures with channels last, one frame high where a kernel is applied, one wide where it is changed.

    Measured beside ``F.conv1d`` on 8 × 500 × 192, kernel 31, one thread: 0.7 ms for 16 forward, 2.5 for 19 backward.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return _convolve(x, weight, bias, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        # under autocast, which ends before the backward pass, the gradient has 16 bits
        x, backwards = x.to(gradient.dtype), weight.flip(2).to(gradient.dtype)
        d_x = _convolve(gradient, backwards, None, weight.shape[2] - 1 - ctx.padding)
        d_weight = conv2d_weight(
            x.transpose(1, 2).unsqueeze(3),
            [*weight.shape, 1],
            gradient.transpose(1, 2).unsqueeze(3),
            padding=(ctx.padding, 0),
            groups=x.shape[2],
        )
        return d_x, d_weight.squeeze(3), gradient.flatten(0, 1).sum(dim=0), None


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    picture = x.transpose(1, 2).unsqueeze(2)
    convolved = F.conv2d(picture, weight.unsqueeze(2), bias, padding=(0, padding), groups=x.shape[2])
    return convolved.squeeze(2).transpose(1, 2)


class DepthwiseConvolution(nn.Conv1d):
    """Depthwise convolution with as many frames to the left as to the right."""

    def __init__(self, channels: int, kernel_width: int) -> None:
        super().__init__(channels, channels, kernel_width, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x (B, T, D)."""
        return depthwise(x, self.weight, self.bias, padding=self.kernel_size[0] // 2)  # type: ignore[arg-type]
