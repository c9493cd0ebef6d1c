"""Attention weights with relative positions, and the two modules of a layer that use them.

B batch, T frames, S frames attended to, D width, H heads, K head width of queries and keys, R head width of position
queries, P width of a position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asr.models.encoders.zipformer.attention_kernel import AttentionWeights, attend, attention_weights
from asr.models.encoders.zipformer.balancer import Balancer
from asr.models.encoders.zipformer.chunks import StreamingCache
from asr.models.encoders.zipformer.modules import gated
from asr.models.encoders.zipformer.scaling import BatchCount, ScheduledFloat, scaled_linear
from asr.models.encoders.zipformer.whiten import Whiten, whitening_schedule

PENALTY_PROBABILITY = 0.1


@dataclass(frozen=True)
class HeadSize:
    """Widths of a head.

    Attributes:
        query_head_dim: K, of queries and keys.
        value_head_dim: of values.
        pos_head_dim: R, of queries for positions.
        pos_dim: P, of an encoded distance, even.
    """

    query_head_dim: int
    value_head_dim: int
    pos_head_dim: int
    pos_dim: int


def compact_rel_pos_encoding(
    num_targets: int, num_sources: int, pos_dim: int, device: torch.device | None = None
) -> Tensor:
    """Return Fourier features of the distances from targets to sources; the targets are the last of the sources.

    A distance is compressed by a logarithm and an arctangent to (−π/2, π/2), so that near frames have exact
    distances, and far ones rough ones.

    Args:
        num_targets: frames that attend.
        num_sources: frames attended to, at least as many.
        pos_dim: P, even.

    Returns:
        (num_targets + num_sources − 1, P), from the farthest source in the past to the farthest in the future: cosines
        in even places, sines in odd ones, and 1 in the last.

    Reference:
        ``CompactRelPositionalEncoding`` of icefall's Zipformer.
    """
    # in 32 bits under autocast too: 16 cannot count to 257
    distance = torch.arange(1 - num_sources, num_targets, device=device, dtype=torch.float32).unsqueeze(1)
    resolution = math.sqrt(pos_dim)
    compressed = resolution * distance.sign() * ((distance.abs() + resolution).log() - math.log(resolution))
    angle = (compressed / (pos_dim / (2 * math.pi))).atan() * torch.arange(1, pos_dim // 2 + 1, device=device)
    features = torch.stack((angle.cos(), angle.sin()), dim=-1).flatten(1)
    # `linear_pos` has no bias: this is its place
    return torch.cat((features[:, :-1], torch.ones_like(features[:, :1])), dim=1)


class RelPositionMultiheadAttentionWeights(nn.Module):
    """Weights of heads whose scores are query · key, plus position query · relative position.

    There is no division by √K: initial queries and keys are K^−¼ as large instead.


    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
    """

    def __init__(self, batch_count: BatchCount, embed_dim: int, num_heads: int, size: HeadSize) -> None:
        super().__init__()
        self.batch_count, self.num_heads = batch_count, num_heads
        query_dim, pos_query_dim = num_heads * size.query_head_dim, num_heads * size.pos_head_dim
        # queries, keys and position queries come from one matrix product
        self.dims = query_dim, query_dim, pos_query_dim
        self.in_proj = scaled_linear(embed_dim, sum(self.dims), scale=size.query_head_dim**-0.25)
        self.linear_pos = scaled_linear(size.pos_dim, pos_query_dim, scale=0.05, bias=False)
        # scores do not depend on the mean of the keys, whose bias would wander with rounding errors
        self.balance_keys = Balancer(batch_count, 0.4, 0.6, 0.0, 100.0, probability=0.025)
        self.whiten_keys = Whiten(
            batch_count, whitening_schedule(batch_count, 3.0), gradient_scale=0.025, num_groups=num_heads
        )

    def forward(self, x: Tensor, pos_emb: Tensor, attn_mask: Tensor, cache: StreamingCache) -> AttentionWeights:
        """Return weights of H heads.

        Args:
            x: (B, T, D).
            pos_emb: (T + S − 1, P), see `compact_rel_pos_encoding`.
            attn_mask: (B, 1, T or 1, S), 0 where a frame may attend to, far below 0 elsewhere.
            cache: of the S − T frames before.
        """
        query, key, pos_query = self.in_proj(x).split(self.dims, dim=-1)
        key = cache.extend(self.whiten_keys(self.balance_keys(key)))
        # a limit on the scores themselves: a softmax near 0 or 1 has no gradient left that could bring them back
        penalize = self.training and self.batch_count.is_active(PENALTY_PROBABILITY)
        pos = self.linear_pos(pos_emb).t().unflatten(0, (self.num_heads, -1))
        # (B, T, H · K) → (B, H, T, K)
        query, key, pos_query = (
            each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in (query, key, pos_query)
        )
        return attention_weights(query, key, pos_query, pos, attn_mask, penalize)


class SelfAttention(nn.Module):
    """Projects frames to values, averages them by attention weights, and projects them back."""

    def __init__(self, batch_count: BatchCount, embed_dim: int, num_heads: int, value_head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, num_heads * value_head_dim)
        self.out_proj = scaled_linear(num_heads * value_head_dim, embed_dim, scale=0.05)
        self.whiten = Whiten(batch_count, whitening_schedule(batch_count, 7.5, ratio=3.0))

    def forward(self, x: Tensor, weights: AttentionWeights, cache: StreamingCache) -> Tensor:
        """Attend from every frame of x (B, T, D)."""
        values = cache.extend(self.in_proj(x)).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return self.whiten(self.out_proj(attend(weights, values).transpose(1, 2).flatten(2)))


class NonlinAttention(nn.Module):
    """out_proj(weights · (tanh(gate) ⊙ x) ⊙ y), where gate, x and y are projections of a frame.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
    """

    def __init__(self, batch_count: BatchCount, channels: int) -> None:
        super().__init__()
        hidden_channels = 3 * channels // 4
        self.in_proj = nn.Linear(channels, 3 * hidden_channels)
        self.out_proj = scaled_linear(hidden_channels, channels, scale=0.05)
        self.balancer = Balancer(
            batch_count,
            ScheduledFloat(batch_count, (0.0, 0.25), (20_000.0, 0.05)),
            ScheduledFloat(batch_count, (0.0, 0.75), (20_000.0, 0.95)),
            0.5,
            5.0,
        )
        self.whiten1 = Whiten(batch_count, whitening_schedule(batch_count, 5.0))
        self.whiten2 = Whiten(batch_count, whitening_schedule(batch_count, 5.0, ratio=3.0))

    def forward(
        self,
        x: Tensor,
        weights: AttentionWeights,
        cache: StreamingCache,
        equally: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Attend from every frame of x (B, T, D) with the first head.

        Args:
            x: (B, T, D).
            weights: of all heads.
            cache: of the S − T frames before.
            equally: weights (B, T or 1, S) to attend with instead, and their share (), 0 or 1.
        """
        gate, hidden, factor = self.in_proj(x).chunk(3, dim=-1)
        hidden = cache.extend(gated(self.whiten1(hidden), self.balancer(gate), torch.tanh))
        attended = attend(weights, hidden.unsqueeze(1)).squeeze(1)
        if equally is not None:
            equal, share = equally
            attended = torch.lerp(attended, (equal @ hidden).to(attended.dtype), share.to(attended.dtype))
        return self.whiten2(self.out_proj(attended * factor))
