"""A wide hidden layer between two linear maps, which is never whole in memory.

N frames of all utterances, D width, H hidden width, E width of the output.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from asr.models.encoders.zipformer.balancer import Bounds, balanced, moments, penalty
from asr.models.encoders.zipformer.dropout import masked
from asr.models.encoders.zipformer.pieces import part, pieces
from asr.models.encoders.zipformer.swoosh import Swoosh


def perceptron(
    x: Tensor, hidden: nn.Linear, swoosh: Swoosh, output: nn.Linear, mask: Tensor | None, bounds: Bounds | None
) -> Tensor:
    """Return output(swoosh(hidden(x))) · mask; the hidden layer is computed again in the backward pass.

    Args:
        x: (N, D).
        hidden: from D to H.
        swoosh: the activation.
        output: from H to E.
        mask: (N, 1) factors, or None.
        bounds: in which a balancer keeps the hidden layer; None: it does not work in this pass.

    Returns:
        (N, E).
    """
    parameters = hidden.weight, hidden.bias, output.weight, output.bias
    result: Tensor = _Perceptron.apply(x, *parameters, mask, swoosh, bounds)
    return result


class _Perceptron(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        *parameters, mask, swoosh, bounds = rest
        dtype = F.linear(x[:0], *parameters[:2]).dtype  # of 16 bits under autocast
        to_hidden, hidden_bias, to_output, output_bias = (p.to(dtype) for p in parameters)
        mask = None if mask is None else mask.to(dtype)
        y = x.new_empty(x.shape[0], to_output.shape[0], dtype=dtype)
        found = None
        for piece in pieces(x, to_hidden.shape[0]):
            hidden = F.linear(x[piece].to(dtype), to_hidden, hidden_bias)
            if bounds is not None:
                share = moments(hidden) * (hidden.shape[0] / x.shape[0])
                found = share if found is None else found.add_(share)
            torch.addmm(output_bias, swoosh.value(hidden), to_output.t(), out=y[piece])
        if mask is not None:
            y.mul_(mask)
        ctx.save_for_backward(x, *parameters, mask, None if found is None else penalty(found, bounds))
        ctx.swoosh = swoosh
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters, mask, pull = ctx.saved_tensors
        to_hidden, hidden_bias, to_output, _ = (p.to(gradient.dtype) for p in parameters)
        d_x = torch.empty_like(x, dtype=gradient.dtype)
        d_to_hidden, d_hidden_bias, d_to_output, d_output_bias = (torch.zeros_like(p) for p in parameters)
        for piece in pieces(x, to_hidden.shape[0]):
            frames, d_y = x[piece].to(gradient.dtype), masked(gradient[piece], part(mask, piece))
            hidden = F.linear(frames, to_hidden, hidden_bias)
            value, slope = ctx.swoosh.value_and_slope(hidden)
            d_hidden = (d_y @ to_output).mul_(slope)
            if pull is not None:
                d_hidden = balanced(d_hidden, hidden, pull)
            d_to_output += d_y.t() @ value
            d_output_bias += d_y.sum(dim=0)
            d_to_hidden += d_hidden.t() @ frames
            d_hidden_bias += d_hidden.sum(dim=0)
            torch.mm(d_hidden, to_hidden, out=d_x[piece])
        return d_x.to(x.dtype), d_to_hidden, d_hidden_bias, d_to_output, d_output_bias, None, None, None
