"""Fewer frames, and as many again.

B batch, T frames, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

OUTPUT_DOWNSAMPLING = 2  # from 50 Hz to 25


class Downsample(nn.Module):
    """Weighs each ``factor`` frames in a row with learned weights; the last frame fills up its group."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.logits = nn.Parameter(torch.zeros(factor))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return ⌈T / factor⌉ frames of x (B, T, D), whose valid frames are ``lengths`` (B,)."""
        num_missing = -x.shape[1] % self.factor
        if num_missing:
            x = torch.cat((x, x[:, -1:].expand(-1, num_missing, -1)), dim=1)
        last = (lengths - 1).clamp(min=0)
        valid = torch.arange(x.shape[1], device=x.device) <= last.unsqueeze(1)
        filled = torch.where(valid.unsqueeze(2), x, x.take_along_dim(last[:, None, None], dim=1))
        weights = self.logits.softmax(dim=0).to(x.dtype)
        # not as a matrix product, which autocast would round to 16 bits: this sum is what all layers add to
        return (filled.unflatten(1, (-1, self.factor)) * weights.unsqueeze(1)).sum(dim=2)


def upsample(x: Tensor, factor: int, num_frames: int) -> Tensor:
    """Repeat every frame of x (B, T, D) ``factor`` times, and return the first ``num_frames``."""
    return x.repeat_interleave(factor, dim=1)[:, :num_frames]
