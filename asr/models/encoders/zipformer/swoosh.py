"""The activations SwooshL and SwooshR, alone and fused with the linear map behind them.

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

from asr.models.encoders.zipformer.dropout import masked, shared_mask
from asr.models.encoders.zipformer.initial import scaled_
from asr.models.encoders.zipformer.pieces import part, pieces
from asr.models.encoders.zipformer.schedule import Value

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
        """Return the activation of a tensor of any shape; only its input is kept for the backward pass.

        Where ``zero``, of the same number of dimensions, is true, the result is 0.
        """
        activated: Tensor = _Activation.apply(x, self, zero)
        return activated

    def value(self, x: Tensor) -> Tensor:
        """Return the activation, without a graph."""
        return F.softplus(x - self.shift, threshold=LINEAR_FROM).sub_(x, alpha=SLOPE).sub_(self.offset)

    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activation and its derivative, without a graph: log(1 + e^t) is −log σ(−t)."""
        shifted = x - self.shift
        # σ must be a normal number: it is at 78 in 32 bits, and at 8 in float16; beyond, the activation is t
        complement = shifted.clamp(max=-0.9 * math.log(torch.finfo(x.dtype).tiny)).neg_().sigmoid_()
        value = torch.maximum(complement.log().neg_(), shifted, out=shifted)
        return value.sub_(x, alpha=SLOPE).sub_(self.offset), complement.neg_().add_(1.0 - SLOPE)


SWOOSH_L = Swoosh(shift=4.0, offset=0.035)
SWOOSH_R = Swoosh(shift=1.0, offset=0.313261687)


class _Activation(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, swoosh: Swoosh, zero: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, zero)
        ctx.swoosh = swoosh
        y = torch.empty_like(x)
        for piece in pieces(x):
            y[piece] = swoosh.value(x[piece])
        return y if zero is None else y.masked_fill_(zero, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, zero = ctx.saved_tensors
        d_x = torch.empty_like(x)
        for piece in pieces(x):
            slope = (x[piece] - ctx.swoosh.shift).sigmoid_().sub_(SLOPE)
            torch.mul(gradient[piece], slope, out=d_x[piece])
        return d_x if zero is None else d_x.masked_fill_(zero, 0.0), None, None


class _ActivationLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, swoosh: Swoosh) -> Tensor:
        ctx.save_for_backward(x, weight, mask)
        ctx.swoosh = swoosh
        y = x.new_empty(*x.shape[:-1], weight.shape[0])
        for piece in pieces(x):
            y[piece] = F.linear(masked(swoosh.value(x[piece]), part(mask, piece)), weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mask = ctx.saved_tensors
        d_x, d_weight = torch.empty_like(x), torch.zeros_like(weight)
        backwards = weight.to(gradient.dtype)
        for piece in pieces(x):
            value, slope = ctx.swoosh.value_and_slope(x[piece])
            rows = gradient[piece].flatten(0, -2)
            value = masked(value, part(mask, piece)).flatten(0, -2).to(rows.dtype)
            d_weight += rows.t() @ value
            d_x[piece] = masked((rows @ backwards).view_as(slope).mul_(slope), part(mask, piece))
        d_bias = gradient.flatten(0, -2).sum(dim=0).to(weight.dtype)
        return d_x, d_weight, d_bias, None, None


class SwooshLinear(nn.Module):
    """A swoosh, dropout of whole channels of an utterance, and a linear map.

    Only the input of the three is kept for the backward pass, which computes the activation again.

    Args:
        num_inputs: width D.
        num_outputs: width E.
        swoosh: the activation.
        scale: of the initial weights, beside PyTorch's.
        dropout: probability in training.
    """

    def __init__(self, num_inputs: int, num_outputs: int, swoosh: Swoosh, scale: float, dropout: Value = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_outputs)
        scaled_(self.linear, scale)
        self.swoosh, self.dropout = swoosh, dropout

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, D) to (B, T, E)."""
        mask = shared_mask(x, float(self.dropout)) if self.training else None
        result: Tensor = _ActivationLinear.apply(x, self.linear.weight, self.linear.bias, mask, self.swoosh)
        return result
