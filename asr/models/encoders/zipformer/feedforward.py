"""Feed-forward module.

B batch, T frames, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from asr.models.encoders.zipformer.balancer import Balancer
from asr.models.encoders.zipformer.schedule import TrainingClock, Value
from asr.models.encoders.zipformer.swoosh import SWOOSH_L, SwooshLinear
from asr.models.encoders.zipformer.whiten import Whiten, whitening_schedule


class FeedForward(nn.Module):
    """A linear map, SwooshL, and a linear map back."""

    def __init__(self, clock: TrainingClock, d_model: int, d_hidden: int, dropout: Value) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, d_hidden)
        self.balancer = Balancer(clock, 0.3, 1.0, 0.75, 5.0)
        self.output = SwooshLinear(d_hidden, d_model, SWOOSH_L, scale=0.1, dropout=dropout)
        self.whiten = Whiten(whitening_schedule(clock, 7.5))

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, D)."""
        return self.whiten(self.output(self.balancer(self.hidden(x))))
