"""Attention weights with relative positions, which several modules of a layer share.

B batch, T frames, S frames attended to, D width, H heads, K head width of queries and keys, R head width of position
queries, P width of a position.
"""

from __future__ import annotations

from torch import Tensor, nn

from asr.models.encoders.zipformer import schedule
from asr.models.encoders.zipformer.attention_scores import Weights, attention_weights
from asr.models.encoders.zipformer.balancer import Balancer
from asr.models.encoders.zipformer.initial import scaled_linear
from asr.models.encoders.zipformer.limits import attached
from asr.models.encoders.zipformer.memory import Memory
from asr.models.encoders.zipformer.schedule import Scheduled, TrainingClock
from asr.models.encoders.zipformer.whiten import Whiten, whitening_schedule

PENALTY_PROBABILITY = 0.1


class AttentionWeights(nn.Module):
    """Weights of heads whose scores are query · key, plus position query · relative position.

    There is no division by √K: initial queries and keys are K^−¼ as large instead.

    Args:
        clock: of what is scheduled.
        d_model: width D.
        num_heads: H.
        query_width: K.
        position_query_width: R.
        position_width: P.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
    """

    def __init__(
        self,
        clock: TrainingClock,
        d_model: int,
        num_heads: int,
        query_width: int,
        position_query_width: int,
        position_width: int,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.widths = (num_heads * query_width, num_heads * query_width, num_heads * position_query_width)
        self.project = scaled_linear(d_model, sum(self.widths), scale=query_width**-0.25)
        self.project_positions = scaled_linear(position_width, self.widths[2], scale=0.05, bias=False)
        # scores do not depend on the mean of the keys, whose bias would wander with rounding errors
        self.balance_keys = Balancer(clock, 0.4, 0.6, 0.0, 100.0, probability=0.025)
        self.whiten_keys = Whiten(whitening_schedule(clock, 3.0), gradient_scale=0.025, num_groups=num_heads)
        self.position_skip = Scheduled(clock, (0.0, 0.5), (4000.0, 0.0))

    def forward(self, x: Tensor, positions: Tensor, unseen: Tensor, memory: Memory) -> Weights:
        """Return weights of H heads.

        Args:
            x: (B, T, D).
            positions: (T + S − 1, P), see `relative_positions`.
            unseen: (B, 1, T or 1, S), 0 where a frame may attend to, and far below where not.
            memory: of the S − T frames before.
        """
        query, key, position_query = self.project(x).split(self.widths, dim=-1)
        key = memory.extend(self.whiten_keys(self.balance_keys(key)))
        skip = self.training and schedule.draw() < float(self.position_skip)
        penalise = self.training and schedule.draw() < PENALTY_PROBABILITY
        if skip:
            query = attached(query, self.project_positions.weight)
        return attention_weights(
            self._heads(query),
            self._heads(key),
            self._heads(position_query),
            None if skip else self._project_positions(positions),
            unseen,
            penalise,
        )

    def _heads(self, x: Tensor) -> Tensor:
        """View (B, T, H · K) as (B, H, T, K)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _project_positions(self, positions: Tensor) -> Tensor:
        return self.project_positions(positions).t().unflatten(0, (self.num_heads, -1))
