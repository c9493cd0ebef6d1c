"""Initial weights of the Zipformer: PyTorch's own, scaled, with small biases."""

from __future__ import annotations

import torch
from torch import nn

BIAS_RANGE = 0.1


def scaled_(layer: nn.Linear | nn.Conv2d, scale: float) -> None:
    """Multiply the initial weights by ``scale``, and draw biases from ±0.1 · ``scale``."""
    with torch.no_grad():
        layer.weight.mul_(scale)
        if layer.bias is not None:
            nn.init.uniform_(layer.bias, -BIAS_RANGE * scale, BIAS_RANGE * scale)


def scaled_linear(num_inputs: int, num_outputs: int, scale: float, bias: bool = True) -> nn.Linear:
    """Return a linear map whose output begins ``scale`` times as large as PyTorch's would."""
    layer = nn.Linear(num_inputs, num_outputs, bias=bias)
    scaled_(layer, scale)
    return layer
