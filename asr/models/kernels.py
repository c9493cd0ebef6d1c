"""Kernels that encoders share: cache blocking, depthwise convolutions, padding and types.

B batch, T frames, F frequencies, C or D channels, N rows, W kernel width.
"""

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


def at_least_float32(x: Tensor) -> Tensor:
    """Return x (…) in 32 bits or more: a sum over all frames in 16 bits would lose most of them."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def is_padding(lengths: Tensor, num_frames: int) -> Tensor:
    """Return (B, T), true after the valid ``lengths`` (B,)."""
    return torch.arange(num_frames, device=lengths.device) >= lengths.unsqueeze(1)


def is_tracing() -> bool:
    """Return whether a graph is recorded now.

    Then modules compute what they always do, in operations that other programs have, and for any number of frames:
    autograd functions, loops over blocks, and views by strides would be recorded for the example alone, or not at all.
    """
    return bool(torch.jit.is_tracing()) or torch.compiler.is_compiling()  # type: ignore[attr-defined]


def depthwise_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int = 0) -> Tensor:
    """Convolve each channel with its own kernel.

    Args:
        x: (B, T, D).
        weight: (D, 1, W).
        bias: (D,); None: none.
        padding: zeros before the first and after the last frame.

    Returns:
        (B, T + 2 · padding − W + 1, D).
    """
    if devices.on_accelerator(x) or is_tracing():
        return F.conv1d(x.transpose(1, 2), weight, bias, padding=padding, groups=int(weight.shape[0])).transpose(1, 2)
    return _DepthwiseConv1d.apply(x, weight, bias, padding)


class _DepthwiseConv1d(Function):
    """`depthwise_conv1d` on a CPU: x (B, T, D), weight (D, 1, W), bias (D,) or None.

    Convolves images with channels last, of height 1 for the output, of width 1 for the gradient of the kernel.

    On 8 × 500 × 192, kernel 31, one thread: 0.7 ms forward and 2.5 backward, where ``F.conv1d`` takes 16 and 19.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.has_bias = padding, bias is not None
        return _as_row(x, weight, bias, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
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
        return d_x, d_weight.squeeze(3), gradient.flatten(0, 1).sum(dim=0) if ctx.has_bias else None, None


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
        return depthwise_conv1d(x, self.weight, self.bias, self.kernel_size[0] // 2)


class DepthwiseConv2d(nn.Conv2d):
    """Convolves each channel with its own square kernel, and keeps the size of the image."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__(channels, channels, kernel_size, groups=channels)

    def forward(self, x: Tensor, pad_time: bool = True) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Convolve x (B, T, F, C), with zeros around it; without ``pad_time`` only at the ends of the frequencies.

        Returns:
            (B, T, F, C) convolved, of T − ``kernel_size`` + 1 frames without ``pad_time``, and x itself for the
            residual branch: the gradients of both add up in place.
        """
        around = self.kernel_size[0] // 2
        padding = (around if pad_time else 0, around)
        image = x.permute(0, 3, 1, 2)
        if is_tracing():
            convolved = F.conv2d(image, self.weight, self.bias, padding=padding, groups=self.groups)
            return convolved.permute(0, 2, 3, 1), x
        # there and back: else its gradient has the strides of channels last, which DistributedDataParallel must copy
        weight = self.weight.squeeze(1).unsqueeze(1)
        convolved, residual = _DepthwiseConv2d.apply(image, weight, self.bias, padding)
        return convolved.permute(0, 2, 3, 1), residual.permute(0, 2, 3, 1)


class _DepthwiseConv2d(Function):
    """A convolution of images (B, C, T, F) with weight (C, 1, W, W) and bias (C,), and the images themselves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: tuple[int, int]) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return F.conv2d(x, weight, bias, padding=padding, groups=weight.shape[0]), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, d_residual: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        # autocast ends before the backward pass; under it the gradient has 16 bits, x and the weights 32
        inputs, flipped = x.to(gradient.dtype), weight.flip(2, 3).to(gradient.dtype)
        around = [width - 1 - padding for width, padding in zip(weight.shape[2:], ctx.padding, strict=True)]
        d_weight = conv2d_weight(inputs, weight.shape, gradient, padding=ctx.padding, groups=weight.shape[0])
        # a depthwise convolution too, with the kernel flipped
        d_x = F.conv2d(gradient, flipped, padding=around, groups=weight.shape[0])
        # this sum takes a fifth of the time that it takes with the gradient of the weight
        d_bias = gradient.permute(0, 2, 3, 1).flatten(0, 2).sum(dim=0)
        # autograd would add the two gradients of x into a third tensor of the largest size there is
        return d_x.to(x.dtype).add_(d_residual), d_weight, d_bias, None
