"""Zipformer's attention: its kernel, and attention weights with relative positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from asr.models.encoders.zipformer.modules import StreamingCache, gated
from asr.models.encoders.zipformer.scaling import (
    Balancer,
    BatchCount,
    ScheduledFloat,
    Whiten,
    scaled_linear,
    whitening_schedule,
)
from asr.models.kernels import blocks, is_tracing

LARGEST_SCORE, PENALTY = 25.0, 1e-4  # relative to gradients of a loss that is summed over utterances
MAX_USES = 3  # of the weights of a layer

Use = tuple[Tensor, Tensor]


def by_distance(scores: Tensor, num_sources: int) -> Tensor:
    """View scores (…, T, T + S − 1), by distance, as (…, T, S), by source.

    The row of target t begins T − 1 − t places from the left: each row down, one place less.
    """
    num_targets = scores.shape[-2]
    *outer, row, column = scores.stride()
    offset = scores.storage_offset() + column * (num_targets - 1)
    # a view: a gather would need an index and a copy of the size of all scores
    return scores.as_strided((*scores.shape[:-1], num_sources), (*outer, row - column, column), offset)


def _by_distance_traced(pos_query: Tensor, pos: Tensor) -> Tensor:
    """Return pos_query · pos by source, as `by_distance` does, in operations that ONNX has."""
    # one column more, so that rows which are read one place less wide begin each one place further left
    by_place = pos_query @ F.pad(pos, (0, 1))
    size, heads, num_targets, num_places = by_place.shape
    length = num_targets * (num_places - 1)
    shifted = by_place.flatten(2)[:, :, num_targets - 1 :][:, :, :length]
    return shifted.reshape(size, heads, num_targets, num_places - 1)[..., : num_places - num_targets]


class _ByDistance(Function):
    """`by_distance` of scores (…, T, 2T − 1) → (…, T, T), both ways in operations that a compiler fuses."""

    @staticmethod
    def forward(ctx: Any, by_place: Tensor) -> Tensor:
        num = (by_place.shape[-1] + 1) // 2
        frames = torch.arange(num, device=by_place.device)
        place = num - 1 - frames.unsqueeze(1) + frames
        return by_place.gather(-1, place.expand(*by_place.shape[:-1], num))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        num = gradient.shape[-1]
        places, targets = (torch.arange(n, device=gradient.device) for n in (2 * num - 1, num))
        source = places - (num - 1 - targets.unsqueeze(1))
        taken = gradient.gather(-1, source.clamp(0, num - 1).expand(*gradient.shape[:-1], 2 * num - 1))
        return torch.where((source >= 0) & (source < num), taken, 0.0)


@dataclass(frozen=True)
class AttentionWeights:
    """Attention weights, and what their gradient will be made of.

    The gradient of each use would be T × S per head, written to memory and added up there. Instead, each use stores the
    two narrow factors of its gradient, and the weights' own backward pass multiplies them, block by block. A backward
    pass may stop before the weights, or reach them through some of the uses only. The gradient of ``handle`` tells
    which of the stored factors belong to it.

    Attributes:
        values: (B, H, T, S); each row sums to 1.
        handle: (``MAX_USES``,) dummy tensor that links every use to the weights in autograd. Its gradient is 1 for each
            use that the backward pass went through, else 0.
        uses: (gradient of what was attended to, values minus their mean) of each use, both (B, H or 1, T or S, V).
    """

    values: Tensor
    handle: Tensor
    uses: list[Use | None]


def attention_weights(
    query: Tensor, key: Tensor, pos_query: Tensor, pos: Tensor, attn_mask: Tensor, penalize: bool
) -> AttentionWeights:
    """Return softmax(query · key + pos_query · pos + attn_mask) over the sources.

    Args:
        query: (B, H, T, K).
        key: (B, H, S, K).
        pos_query: (B, H, T, R).
        pos: (H, R, T + S − 1), from the farthest past to the farthest future.
        attn_mask: (B, 1, T or 1, S), 0 where a frame may attend to, far below 0 elsewhere.
        penalize: whether scores beyond ±25 are pulled back, by a gradient of 1e-4.
    """
    uses: list[Use | None] = []
    if is_tracing():
        compiles = torch.compiler.is_compiling()
        by_place = _ByDistance.apply(pos_query @ pos) if compiles else _by_distance_traced(pos_query, pos)
        scores = query @ key.transpose(2, 3) + by_place
        return AttentionWeights((scores + attn_mask).softmax(dim=-1), query.new_empty(0), uses)
    values, handle = _Weights.apply(query, key, pos_query, pos, attn_mask, penalize, uses)
    return AttentionWeights(values, handle, uses)


def attend(weights: AttentionWeights, values: Tensor) -> Tensor:
    """Return averages (B, H, T, V) of values (B, H, S, V); if H is 1 there, with the first head's weights.

    At most ``MAX_USES`` times with the same weights.
    """
    if is_tracing():
        return weights.values[:, : values.shape[1]] @ values
    attended: Tensor = _Attend.apply(values, weights.handle, weights.values, weights.uses)
    return attended


class _Attend(Function):
    """`attend`: values (B, H or 1, S, V), handle (``MAX_USES``,), weights (B, H, T, S) → (B, H or 1, T, V)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, handle: Tensor, weights: Tensor, uses: list[Use | None]) -> Tensor:
        ctx.save_for_backward(values, weights)
        # the backward passes come in another order, or not at all: each use needs its own place
        ctx.uses, ctx.number = uses, len(uses)
        uses.append(None)
        return weights[:, : values.shape[1]] @ values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        values, weights = ctx.saved_tensors
        went_through = gradient.new_zeros(MAX_USES)
        went_through[ctx.number].fill_(1.0)  # to set it would copy a number from the host
        # the softmax subtracts again what all sources have in common, which in 16 bits would drown their differences
        ctx.uses[ctx.number] = (gradient, values - values.mean(dim=-2, keepdim=True))
        return weights[:, : values.shape[1]].mT @ gradient, went_through, None, None


class _Weights(Function):
    """`attention_weights`, with the shapes there → weights (B, H, T, S), handle (``MAX_USES``,)."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        pos_query: Tensor,
        pos: Tensor,
        attn_mask: Tensor,
        penalize: bool,
        uses: list[Use | None],
    ) -> tuple[Tensor, Tensor]:
        weights = query.new_empty(*query.shape[:3], key.shape[2])
        # all that the penalty needs of the scores is their sign where they are too large: one byte instead of four
        excess = torch.empty_like(weights, dtype=torch.int8) if penalize else None
        for block in blocks(weights):
            scores = query[block] @ key[block].mT
            scores += by_distance(pos_query[block] @ pos, key.shape[2])
            if excess is not None:
                # before the mask, which is not a score to pull back
                excess[block] = scores.sign() * (scores.abs() > LARGEST_SCORE)
            weights[block] = (scores + attn_mask[block]).softmax(dim=-1)
        # the gradient of a softmax needs its output, not the scores
        ctx.save_for_backward(query, key, pos_query, pos, weights, excess)
        # else autograd would ask each use for the T × S gradient that `handle` stands for
        ctx.mark_non_differentiable(weights)
        # else the gradient of the weights would arrive as zeros, as large as the weights
        ctx.set_materialize_grads(False)
        ctx.uses = uses
        return weights, query.new_zeros(MAX_USES)

    @staticmethod
    def backward(ctx: Any, _: None, went_through: Tensor) -> tuple[Tensor | None, ...]:
        query, key, pos_query, pos, weights, excess = ctx.saved_tensors
        # in memory (B, T, H, K), as the projection of frames is: the gradient of that is then a view, not a copy
        d_query, d_key, d_pos_query = (
            x.new_empty([x.shape[axis] for axis in (0, 2, 1, 3)]).transpose(1, 2) for x in (query, key, pos_query)
        )
        d_pos = torch.zeros_like(pos)
        # factors of an earlier backward pass that stopped before the weights are multiplied by 0
        uses = [(use[0] * through, use[1]) for use, through in zip(ctx.uses, went_through, strict=False) if use]
        for block in blocks(weights):
            scores = _through_softmax(weights[block], [(d_y[block], values[block]) for d_y, values in uses])
            if excess is not None:
                scores.add_(excess[block], alpha=PENALTY)
            d_query[block] = scores @ key[block]
            d_key[block] = scores.mT @ query[block]
            # written through the view: places that no source has stay 0
            by_place = scores.new_zeros(*scores.shape[:3], pos.shape[2])
            by_distance(by_place, key.shape[2]).copy_(scores)
            d_pos_query[block] = by_place @ pos.mT
            d_pos += (pos_query[block].mT @ by_place).sum(dim=0)
        # emptied in place, for all uses hold this list: the next backward pass must find no factors of this one
        ctx.uses[:] = [None] * len(ctx.uses)
        return d_query, d_key, d_pos_query, d_pos, None, None, None


def _through_softmax(weights: Tensor, uses: list[Use]) -> Tensor:
    """Return the gradient by the scores of all uses of the weights."""
    gradient = torch.zeros_like(weights)
    for d_attended, values in uses:
        # a use of the first head alone has one head here
        gradient[:, : values.shape[1]] += d_attended @ values.mT
    gradient *= weights
    return gradient.addcmul_(weights, gradient.sum(dim=-1, keepdim=True), value=-1)


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
