"""Limits on parameters that work on their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asr.models.encoders.zipformer import schedule

PROBABILITY = 0.6  # that a limit is applied in a forward pass


class _Limited(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, least: float, most: float) -> Tensor:
        ctx.save_for_backward(parameter)
        ctx.least, ctx.most = least, most
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (parameter,) = ctx.saved_tensors
        # descending along a gradient of this sign would lead further out
        outwards = ((parameter < ctx.least) & (gradient > 0)) | ((parameter > ctx.most) & (gradient < 0))
        return torch.where(outwards, -gradient, gradient), None, None


def limited(parameter: Tensor, least: float, most: float) -> Tensor:
    """Return a parameter unchanged, whose gradient, more often than not, leads back into [least, most].

    Where an element lies outside, its gradient is given the sign that moves it inside.
    """
    if schedule.draw() < PROBABILITY:
        limit: Tensor = _Limited.apply(parameter, least, most)
        return limit
    return parameter


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.scale, None


def with_scaled_gradient(x: Tensor, scale: float) -> Tensor:
    """Return x unchanged, whose gradient is multiplied by ``scale``."""
    scaled: Tensor = _Scaled.apply(x, scale)
    return scaled


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: Tensor) -> Tensor:
        ctx.save_for_backward(parameter)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (parameter,) = ctx.saved_tensors
        return gradient, torch.zeros_like(parameter)


def attached(x: Tensor, parameter: Tensor) -> Tensor:
    """Return x unchanged, and give a parameter that this pass left out a gradient of zero.

    Data-parallel training waits for a gradient of every parameter.
    """
    result: Tensor = _Attached.apply(x, parameter)
    return result
