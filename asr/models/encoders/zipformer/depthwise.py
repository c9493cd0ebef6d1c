"""Depthwise convolution over time.

B batch, T frames, D channels, W kernel width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.grad import conv2d_weight

from asr.models.encoders.zipformer.memory import Memory

BIAS_RANGE = 0.1


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


class CausalConvolution(nn.Module):
    """Depthwise convolution that sees the past, and the future no further than the end of the frame's chunk.

    A causal convolution of half the width, plus one of the whole width within each chunk, whose output is multiplied by
    1 + learned edges, because near its ends a chunk lacks neighbours.

    Reference:
        ``ChunkCausalDepthwiseConv1d`` of icefall.
        Differs: neither the end of a batch nor an utterance shorter than a chunk makes a chunk shorter.
    """

    def __init__(self, channels: int, kernel_width: int) -> None:
        super().__init__()
        self.kernel_width = kernel_width
        self.past = nn.Conv1d(channels, channels, (kernel_width + 1) // 2, groups=channels)
        assert self.past.bias is not None
        nn.init.uniform_(self.past.bias, -BIAS_RANGE, BIAS_RANGE)
        self.within = DepthwiseConvolution(channels, kernel_width)
        self.edges = nn.Parameter(torch.zeros(2, channels, kernel_width))

    def forward(self, x: Tensor, lengths: Tensor, chunk_frames: int | None, memory: Memory) -> Tensor:
        """Convolve x (B, T, D) of valid lengths (B,) in chunks; None makes each utterance one chunk."""
        past = memory.pad(x, self.kernel_width // 2)
        past = depthwise(past, self.past.weight, self.past.bias)  # type: ignore[arg-type]
        if chunk_frames is None:
            return past + self.within(x) * self.edge_scale(x.shape[1], lengths)
        chunks = F.pad(x, (0, 0, 0, -x.shape[1] % chunk_frames)).unflatten(1, (-1, chunk_frames))
        ends = torch.tensor([chunk_frames], device=x.device)
        within = self.within(chunks.flatten(0, 1)) * self.edge_scale(chunk_frames, ends)
        return past + within.unflatten(0, chunks.shape[:2]).flatten(1, 2)[:, : x.shape[1]]

    def edge_scale(self, num_frames: int, ends: Tensor) -> Tensor:
        """Return factors (E, T, D) for the T frames of chunks that end at ``ends`` (E,)."""
        # the last row is for frames that are not near an edge
        left, right = F.pad(self.edges, (0, 1)).mT
        frames, far = torch.arange(num_frames, device=ends.device), self.kernel_width
        place = frames + far - ends.unsqueeze(1)
        place = torch.where((place >= 0) & (place < far), place, far)
        return 1.0 + left[frames.clamp(max=far)] + right[place]
