"""The activations SwooshL and SwooshR, alone and fused with dropout and the linear map after them.

B batch, T frames, D width, E width of the output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from asr.models.encoders.zipformer.scaling import masked, scale_initial_
from asr.models.kernels import block_of, blocks, is_tracing

SLOPE = 0.08
LINEAR_FROM = 40.0  # log(1 + e^x) is x from here on in every floating-point type


@dataclass(frozen=True)
class Swoosh:
    """log(1 + e^(x − shift)) − 0.08 x − offset.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
        Differs: exact slopes, where the authors' CUDA kernels keep them in one byte.
    """

    shift: float
    offset: float

    def __call__(self, x: Tensor, zero: Tensor | None = None) -> Tensor:
        """Return the activation of a tensor of any shape; the backward pass keeps only x.

        The result is 0 where ``zero``, which has as many dimensions, is true.
        """
        if is_tracing():
            shifted = x - self.shift
            # not softplus, which takes three times as long in onnxruntime
            activated = F.relu(shifted) + (1.0 + (-shifted.abs()).exp()).log() - SLOPE * x - self.offset
            return activated if zero is None else activated.masked_fill(zero, 0.0)
        result: Tensor = _Activation.apply(x, self, zero)
        return result

    def value(self, x: Tensor) -> Tensor:
        """Return the activation of x (…), of its shape, without a graph."""
        # the default threshold of 20 would be an error of 2e-9 in float64
        return F.softplus(x - self.shift, threshold=LINEAR_FROM).sub_(x, alpha=SLOPE).sub_(self.offset)

    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activation of x (…) and its derivative (…), without a graph: log(1 + e^t) is −log σ(−t)."""
        shifted = x - self.shift
        # σ must be a normal number, or its logarithm is wrong: it is at 78 in 32 bits, and at 8 in float16; beyond
        # that, the activation is t
        complement = shifted.clamp(max=-0.9 * math.log(torch.finfo(x.dtype).tiny)).neg_().sigmoid_()
        # one σ serves both
        value = torch.maximum(complement.log().neg_(), shifted, out=shifted)
        return value.sub_(x, alpha=SLOPE).sub_(self.offset), complement.neg_().add_(1.0 - SLOPE)


SWOOSH_L = Swoosh(shift=4.0, offset=0.035)
SWOOSH_R = Swoosh(shift=1.0, offset=0.313261687)


class _Activation(Function):
    """A swoosh of x (…), 0 where ``zero``, which broadcasts to x, is true."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, swoosh: Swoosh, zero: Tensor | None) -> Tensor:
        # x is kept by whoever made it; plain autograd would keep x − shift beside it
        ctx.save_for_backward(x, zero)
        ctx.swoosh = swoosh
        y = torch.empty_like(x)
        for block in blocks(x):
            y[block] = swoosh.value(x[block])
        return y if zero is None else y.masked_fill_(zero, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, zero = ctx.saved_tensors
        d_x = torch.empty_like(x)
        for block in blocks(x):
            slope = (x[block] - ctx.swoosh.shift).sigmoid_().sub_(SLOPE)
            torch.mul(gradient[block], slope, out=d_x[block])
        # not a product with 0, which would keep what is not finite in the gradient of padding
        return d_x if zero is None else d_x.masked_fill_(zero, 0.0), None, None


class _ActivationDropoutLinear(Function):
    """x (B, T, D), weight (E, D), bias (E,) and mask (B, 1, D) → (B, T, E)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, swoosh: Swoosh) -> Tensor:
        ctx.save_for_backward(x, weight, mask)
        ctx.swoosh = swoosh
        y = x.new_empty(*x.shape[:-1], weight.shape[0])
        for block in blocks(x):
            y[block] = F.linear(masked(swoosh.value(x[block]), block_of(mask, block)), weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mask = ctx.saved_tensors
        d_x, d_weight = torch.empty_like(x), torch.zeros_like(weight)
        # under autocast x and the gradient have 16 bits, the weights 32; d_weight adds blocks up in 32
        low_weight = weight.to(gradient.dtype)
        for block in blocks(x):
            # computed again: kept, it would take as much memory as x, the widest tensor of a layer
            value, slope = ctx.swoosh.value_and_slope(x[block])
            rows = gradient[block].flatten(0, -2)
            value = masked(value, block_of(mask, block)).flatten(0, -2).to(rows.dtype)
            d_weight += rows.t() @ value
            d_x[block] = masked((rows @ low_weight).view_as(slope).mul_(slope), block_of(mask, block))
        d_bias = gradient.flatten(0, -2).sum(dim=0).to(weight.dtype)
        return d_x, d_weight, d_bias, None, None


class ActivationDropoutAndLinear(nn.Linear):
    """A swoosh, dropout of channels of whole utterances, and a linear map.

    The backward pass keeps only the input of the three, and computes the activation again.

    Args:
        scale: of the initial weights, relative to PyTorch's.
    """

    def __init__(self, num_inputs: int, num_outputs: int, swoosh: Swoosh, scale: float) -> None:
        super().__init__(num_inputs, num_outputs)
        scale_initial_(self, scale)
        self.swoosh = swoosh

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map x (B, T, D) to (B, T, E); the mask (B, 1, D) has the factors of dropout."""
        if is_tracing():
            return F.linear(masked(self.swoosh(x), mask), self.weight, self.bias)
        result: Tensor = _ActivationDropoutLinear.apply(x, self.weight, self.bias, mask, self.swoosh)
        return result
