"""Bypass: how much of a module's change each channel takes.

B batch, T frames, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asr.models.encoders.zipformer.dropout import masked, utterance_mask
from asr.models.encoders.zipformer.limits import limited
from asr.models.encoders.zipformer.schedule import Scheduled, TrainingClock, Value


class Bypass(nn.Module):
    """before + (after − before) ⊙ scale, with a learned scale per channel.

    Early in training the scale is kept near 1, so that every module learns something.

    Args:
        clock: of what is scheduled.
        d_model: width D.
        skip: probability in training that an utterance goes past what lies between.
    """

    def __init__(self, clock: TrainingClock, d_model: int, skip: Value = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((d_model,), 0.5))
        self.skip = skip
        self.least = Scheduled(clock, (0.0, 0.9), (20_000.0, 0.2))

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the mixture of (B, T, D) and (B, T, D)."""
        scale: Tensor = self.scale
        if self.training:
            scale = masked(limited(scale, float(self.least), 1.0), utterance_mask(before, float(self.skip)))
        return torch.lerp(before, after, scale.to(before.dtype))
