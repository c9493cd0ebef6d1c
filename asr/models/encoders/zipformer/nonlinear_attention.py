"""Attention between two multiplications.

B batch, T frames, D width, E hidden width.
"""

from __future__ import annotations

from torch import Tensor, nn

from asr.models.encoders.zipformer.attention_scores import Weights, attend
from asr.models.encoders.zipformer.balancer import Balancer
from asr.models.encoders.zipformer.initial import scaled_linear
from asr.models.encoders.zipformer.memory import Memory
from asr.models.encoders.zipformer.schedule import Scheduled, TrainingClock
from asr.models.encoders.zipformer.whiten import Whiten, whitening_schedule


class NonlinearAttention(nn.Module):
    """output(weights · (tanh(gate) ⊙ x) ⊙ y), where gate, x and y are projections of a frame.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
    """

    def __init__(self, clock: TrainingClock, d_model: int) -> None:
        super().__init__()
        d_hidden = 3 * d_model // 4
        self.project = nn.Linear(d_model, 3 * d_hidden)
        self.output = scaled_linear(d_hidden, d_model, scale=0.05)
        self.balance_gate = Balancer(
            clock,
            Scheduled(clock, (0.0, 0.25), (20_000.0, 0.05)),
            Scheduled(clock, (0.0, 0.75), (20_000.0, 0.95)),
            0.5,
            5.0,
        )
        self.whiten_hidden = Whiten(whitening_schedule(clock, 5.0))
        self.whiten_output = Whiten(whitening_schedule(clock, 5.0, ratio=3.0))

    def forward(self, x: Tensor, weights: Weights, memory: Memory, constant: bool = False) -> Tensor:
        """Attend from every frame of x (B, T, D) with the first head; ``constant``: to all that it sees alike."""
        gate, hidden, factor = self.project(x).chunk(3, dim=-1)
        hidden = memory.extend(self.whiten_hidden(hidden) * self.balance_gate(gate).tanh())
        attended = _mean(weights, hidden) if constant else attend(weights, hidden.unsqueeze(1)).squeeze(1)
        return self.whiten_output(self.output(attended * factor))


def _mean(weights: Weights, hidden: Tensor) -> Tensor:
    """Return the mean over all frames that the first head sees."""
    seen = (weights.values[:, 0] > 0).to(hidden.dtype)
    return (seen / seen.sum(dim=-1, keepdim=True)) @ hidden
