"""BiasNorm.

B batch, T frames, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from asr.models.encoders.zipformer.limits import limited

LOG_SCALE_LIMIT = 1.5
INITIAL_BIAS_STD = 1e-4


class _BiasNorm(Function):
    """y = x · r, with r = e^s / rms(x − b) per frame."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, log_scale: Tensor) -> Tensor:
        mean_square = (x - bias).square_().mean(dim=-1, keepdim=True)
        factor = mean_square.rsqrt() * log_scale.exp()
        ctx.save_for_backward(x, bias, mean_square, factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, bias, mean_square, factor = ctx.saved_tensors
        along_factor = (gradient * x).sum(dim=-1, keepdim=True) * factor
        # ∂r/∂x = −r (x − b) / (D · mean square), and ∂r/∂b = −∂r/∂x
        pull = along_factor / (mean_square * x.shape[-1])
        pulled = (x - bias).mul_(pull)
        d_bias = pulled.flatten(0, -2).sum(dim=0)
        return pulled.neg_().addcmul_(gradient, factor), d_bias, along_factor.sum()


class BiasNorm(nn.Module):
    """Scales every frame to e^log_scale of its root mean square around a learned bias.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(1.0))
        self.bias = nn.Parameter(torch.randn(d_model) * INITIAL_BIAS_STD)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (B, T, D)."""
        log_scale = limited(self.log_scale, -LOG_SCALE_LIMIT, LOG_SCALE_LIMIT) if self.training else self.log_scale
        normalised: Tensor = _BiasNorm.apply(x, self.bias, log_scale)
        return normalised
