"""Self-attention with weights that were computed elsewhere.

B batch, T frames, D width, H heads, K head width of values.
"""

from __future__ import annotations

from torch import Tensor, nn

from asr.models.encoders.zipformer.attention_scores import Weights, attend
from asr.models.encoders.zipformer.initial import scaled_linear
from asr.models.encoders.zipformer.memory import Memory
from asr.models.encoders.zipformer.schedule import TrainingClock
from asr.models.encoders.zipformer.whiten import Whiten, whitening_schedule


class SelfAttention(nn.Module):
    """Projects frames to values, averages them by attention weights, and projects them back."""

    def __init__(self, clock: TrainingClock, d_model: int, num_heads: int, value_width: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.value = nn.Linear(d_model, num_heads * value_width)
        self.output = scaled_linear(num_heads * value_width, d_model, scale=0.05)
        self.whiten = Whiten(whitening_schedule(clock, 7.5, ratio=3.0))

    def forward(self, x: Tensor, weights: Weights, memory: Memory) -> Tensor:
        """Attend from every frame of x (B, T, D)."""
        values = memory.extend(self.value(x)).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return self.whiten(self.output(attend(weights, values).transpose(1, 2).flatten(2)))
