"""Normalization of features by fixed statistics.

B batch, T frames, F mel bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class GlobalNorm(nn.Module):
    """Shifts and scales every feature by its mean and standard deviation over the training data.

    The statistics are buffers, so a checkpoint holds them.

    Args:
        mean: F means.
        std: F standard deviations, all positive.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std, default=0.0) <= 0:
            raise ValueError(f"need as many means as positive deviations, given {len(mean)} and {list(std)[:3]} …")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("inverse_std", 1.0 / torch.tensor(std, dtype=torch.float32))
        self.mean: Tensor
        self.inverse_std: Tensor

    def forward(self, features: Tensor) -> Tensor:
        """Return features (B, T, F) with zero mean and unit variance over the training data."""
        return (features - self.mean) * self.inverse_std
