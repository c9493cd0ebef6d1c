"""Kernels that encoders share: cache blocking, depthwise convolution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.grad import conv2d_weight

from asr.models import devices

BLOCK_ELEMENTS = 2**19  # two megabytes of float32


def blocks(x: Tensor, row_elements: int | None = None) -> Iterator[slice]:
    """Return slices of the first dimension of x, each of about ``BLOCK_ELEMENTS`` elements, at least of one row.

    Temporary memory of a block is used again for the next one. On a CPU, fresh memory for all of x would take longer
    than the arithmetic. On an accelerator all of x is one block.

    Args:
        x: (N, …).
        row_elements: elements in a place of the first dimension, if more is made of x than x has; None: those of x.
    """
    num_rows = x.shape[0]
    row_elements = x[:1].numel() if row_elements is None else row_elements
    # in one: small kernels would leave a GPU idle, and its allocator keeps memory anyway;
    # at least 1, because a range with steps of 0 is an error: x may have no rows, or rows without elements
    size = max(1, num_rows) if devices.on_accelerator(x) else max(1, BLOCK_ELEMENTS // max(1, row_elements))
    return (slice(start, start + size) for start in range(0, num_rows, size))


def block_of(x: Tensor | None, block: slice) -> Tensor | None:
    """Return the rows of a block of x (N, …); None if x is None."""
    return None if x is None else x[block]


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which a matrix product of x (…) is computed: its own, or autocast's, which leaves 64 bits."""
    device = x.device.type
    is_cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if is_cast else x.dtype


def is_tracing() -> bool:
    """Return whether a graph is recorded now.

    Then modules compute what they always do, in operations that other programs have, and for any number of frames:
    autograd functions, loops over blocks, and views by strides would be recorded for the example alone, or not at all.
    """
    return bool(torch.jit.is_tracing()) or torch.compiler.is_compiling()  # type: ignore[attr-defined]


def depthwise_conv1d(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    """Convolve each channel with its own kernel.

    Args:
        x: (B, T, D).
        weight: (D, 1, W).
        bias: (D,).
        padding: zeros before the first and after the last frame.

    Returns:
        (B, T + 2 · padding − W + 1, D).
    """
    if devices.on_accelerator(x) or is_tracing():
        return F.conv1d(x.transpose(1, 2), weight, bias, padding=padding, groups=int(weight.shape[0])).transpose(1, 2)
    convolved: Tensor = _DepthwiseConv1d.apply(x, weight, bias, padding)
    return convolved


class _DepthwiseConv1d(Function):
    """`depthwise_conv1d` on a CPU: x (B, T, D), weight (D, 1, W), bias (D,).

    Convolves images with channels last, of height 1 for the output, of width 1 for the gradient of the kernel.

    On 8 × 500 × 192, kernel 31, one thread: 0.7 ms forward and 2.5 backward, where ``F.conv1d`` takes 16 and 19.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return _as_row(x, weight, bias, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        # the gradient of a sum is an expanded view: its strides of 0 make the convolution 18 times as slow
        gradient = gradient.contiguous()
        # autocast ends before the backward pass; under it the gradient has 16 bits, x and the weights 32
        x, flipped = x.to(gradient.dtype), weight.flip(2).to(gradient.dtype)
        # the gradient of a convolution is one with the kernel flipped
        d_x = _as_row(gradient, flipped, None, weight.shape[2] - 1 - ctx.padding)
        # images of width 1: with height 1 this takes twice the time
        d_weight = conv2d_weight(
            x.transpose(1, 2).unsqueeze(3),
            [*weight.shape, 1],
            gradient.transpose(1, 2).unsqueeze(3),
            padding=(ctx.padding, 0),
            groups=x.shape[2],
        )
        return d_x, d_weight.squeeze(3), gradient.flatten(0, 1).sum(dim=0), None


def _as_row(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Convolve x (B, T, D) as an image of one row; a transposed (B, T, D) has its channels last in memory."""
    image = x.transpose(1, 2).unsqueeze(2)
    convolved = F.conv2d(image, weight.unsqueeze(2), bias, padding=(0, padding), groups=x.shape[2])
    return convolved.squeeze(2).transpose(1, 2)


class DepthwiseConv1d(nn.Conv1d):
    """Depthwise convolution that sees as many frames before as after, and keeps the number of frames.

    Raises:
        ValueError: the kernel has no middle.
    """

    def __init__(self, channels: int, kernel_width: int) -> None:
        if kernel_width % 2 == 0:
            raise ValueError(f"kernel_width must be odd, given {kernel_width}")
        super().__init__(channels, channels, kernel_width, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x (B, T, D)."""
        return depthwise_conv1d(x, self.weight, self.bias, self.kernel_size[0] // 2)  # type: ignore[arg-type]
