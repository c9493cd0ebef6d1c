"""Dropout whose probability is scheduled, and whose mask is shared along time.

B batch, T frames, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asr.models.encoders.zipformer.schedule import Value


def shared_mask(x: Tensor, probability: float) -> Tensor | None:
    """Return factors (B, 1, D) for x (B, T, D), 0 or 1 / (1 − probability); None where nothing is dropped."""
    if probability == 0:
        return None
    kept = torch.rand(x.shape[0], 1, x.shape[2], device=x.device) > probability
    return kept.to(x.dtype) / (1 - probability)


def utterance_mask(x: Tensor, probability: float) -> Tensor | None:
    """Return factors (B, 1, 1), 0 with ``probability``, else 1; None where nothing is left out."""
    if probability == 0:
        return None
    return (torch.rand(x.shape[0], 1, 1, device=x.device) > probability).to(x.dtype)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x times the mask, if there is one."""
    return x if mask is None else x * mask


class SharedDropout(nn.Module):
    """Drops whole channels of an utterance."""

    def __init__(self, probability: Value) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Drop channels of x (B, T, D) in training."""
        return masked(x, shared_mask(x, float(self.probability))) if self.training else x
