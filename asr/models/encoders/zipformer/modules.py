"""Modules of a Zipformer's layers: attention, feed-forward and convolution modules, bypasses.

B batch, T frames, S frames that are attended to, P frames that are kept or channels of a distance, D width, H heads,
K, R and V channels of a head: of queries, of queries for positions, of values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from asr.models.encoders.streaming import Chunks, StreamingCache
from asr.models.encoders.zipformer.scaling import (
    BIAS_RANGE,
    SWOOSH_L,
    SWOOSH_R,
    ActivationDropoutAndLinear,
    Balancer,
    Whiten,
    limit_param_value,
    masked,
    scaled_linear,
)
from asr.models.encoders.zipformer.schedules import BatchCount, ScheduledFloat
from asr.models.kernels import DepthwiseConv1d, autocast_dtype, blocks, depthwise_conv1d, is_padding, is_tracing

HIDDEN = -1000.0  # added to a score, it makes the weight 0; -inf alone in a row would make its softmax NaN
LARGEST_SCORE, PENALTY = 25.0, 1e-4  # relative to gradients of a loss that is summed over utterances
PENALTY_PROBABILITY = 0.1
MAX_USES = 3  # of the weights of a layer

Use = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LayerSize:
    """Sizes that all layers of a stack share.

    Attributes:
        encoder_dim: width D.
        feedforward_dim: hidden width of the feed-forward modules; of a Zipformer, the first has 3/4 of it, the third
            5/4.
        num_heads: attention heads H.
        cnn_module_kernel: frames of the convolutions, odd; of a Zapformer, unless causal.
        query_head_dim: K, of queries and keys.
        value_head_dim: V, of values.
        pos_head_dim: R, of queries for positions.
        pos_dim: P, of an encoded distance, even: of a Zapformer, cosines and sines of W frequencies.
        causal: whether layers see no further than the end of a chunk.
    """

    encoder_dim: int
    feedforward_dim: int
    num_heads: int
    cnn_module_kernel: int
    query_head_dim: int
    value_head_dim: int
    pos_head_dim: int
    pos_dim: int
    causal: bool


def added_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to scores, far below 0 where ``hidden`` (B, 1, T or 1, S) is true."""
    return torch.where(hidden, HIDDEN, 0.0).to(dtype)


def gated(x: Tensor, gate: Tensor, activation: Callable[[Tensor], Tensor], zero: Tensor | None = None) -> Tensor:
    """Return x ⊙ activation(gate), 0 where ``zero`` is true.

    Args:
        x: (B, …, D).
        gate: of the same shape.
        activation: `torch.sigmoid` or `torch.tanh`.
        zero: bool, broadcast to x; None: nowhere.
    """
    if is_tracing():
        return x * activation(gate) if zero is None else (x * activation(gate)).masked_fill(zero, 0.0)
    return _Gated.apply(x, gate, activation, zero)


class _Gated(Function):
    """`gated`: x and gate (B, …, D), and ``zero``, which broadcasts to them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate: Tensor, activation: Callable[[Tensor], Tensor], zero: Tensor | None
    ) -> Tensor:
        # the activation is computed again in the backward pass: autograd would keep it beside the gate
        ctx.save_for_backward(x, gate, zero)
        ctx.activation = activation
        y = x * activation(gate)
        return y if zero is None else y.masked_fill_(zero, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, gate, zero = ctx.saved_tensors
        gradient, share = gradient if zero is None else gradient.masked_fill(zero, 0.0), ctx.activation(gate)
        aten = torch.ops.aten
        through = aten.tanh_backward if ctx.activation is torch.tanh else aten.sigmoid_backward
        return gradient * share, through(gradient * x, share), None, None


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


class ScoreLimit(Protocol):
    """Pulls scores that are too large back, by what it adds to their gradient."""

    def kept(self, block: slice, scores: Tensor, weights: Tensor) -> Tensor:
        """Return what the backward pass needs of the scores (b, H, T, S) of a block of utterances; they may change."""

    def pull_(self, gradient: Tensor, kept: Tensor, scores: Callable[[], Tensor], weights: Tensor) -> None:
        """Change the gradient (b, H, T, S) of a block; ``scores`` computes the scores again."""


class SignPenalty:
    """Adds 1e-4 times the sign of scores beyond ±25 to their gradient."""

    def kept(self, block: slice, scores: Tensor, weights: Tensor) -> Tensor:
        """Return the sign of scores that are too large: one byte instead of four."""
        return (scores.sign() * (scores.abs() > LARGEST_SCORE)).to(torch.int8)

    def pull_(self, gradient: Tensor, kept: Tensor, scores: Callable[[], Tensor], weights: Tensor) -> None:
        """Add the penalty to the gradient."""
        gradient.add_(kept, alpha=PENALTY)


@dataclass(frozen=True)
class AttentionWeights:
    """Attention weights, and the factors of their gradient.

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
    query: Tensor, key: Tensor, pos_query: Tensor, pos: Tensor, attn_mask: Tensor, limit: ScoreLimit | None
) -> AttentionWeights:
    """Return softmax(query · key + pos_query · pos + attn_mask) over the sources.

    Args:
        query: (B, H, T, K).
        key: (B, H, S, K).
        pos_query: (B, H, T, R).
        pos: (H, R, T + S − 1), from the farthest past to the farthest future.
        attn_mask: (B, 1, T or 1, S), 0 where a frame may attend to, far below 0 elsewhere.
        limit: of the scores; None: none.
    """
    uses: list[Use | None] = []
    if is_tracing():
        compiles = torch.compiler.is_compiling()
        by_place = _ByDistance.apply(pos_query @ pos) if compiles else _by_distance_traced(pos_query, pos)
        scores = query @ key.transpose(2, 3) + by_place
        return AttentionWeights((scores + attn_mask).softmax(dim=-1), query.new_empty(0), uses)
    values, handle = _Weights.apply(query, key, pos_query, pos, attn_mask, limit, uses)
    return AttentionWeights(values, handle, uses)


def attend(weights: AttentionWeights, values: Tensor) -> Tensor:
    """Return averages (B, H, T, V) of values (B, H, S, V); if H is 1 there, with the first head's weights.

    At most ``MAX_USES`` times with the same weights.
    """
    if is_tracing():
        return weights.values[:, : values.shape[1]] @ values
    return _Attend.apply(values, weights.handle, weights.values, weights.uses)


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
        limit: ScoreLimit | None,
        uses: list[Use | None],
    ) -> tuple[Tensor, Tensor]:
        weights, kept = query.new_empty(*query.shape[:3], key.shape[2]), []
        for block in blocks(weights):
            scores = _scores(query[block], key[block], pos_query[block], pos)
            masked_scores = scores + attn_mask[block]
            if masked_scores.dtype == weights.dtype:
                torch.softmax(masked_scores, dim=-1, out=weights[block])  # without a copy
            else:
                weights[block] = masked_scores.softmax(dim=-1)
            if limit is not None:
                # of scores without the mask, which is not a score to pull back
                kept.append(limit.kept(block, scores, weights[block]))
        # the gradient of a softmax needs its output, not the scores
        ctx.save_for_backward(query, key, pos_query, pos, weights, *kept)
        ctx.limit = limit
        # else autograd would ask each use for the T × S gradient that `handle` stands for
        ctx.mark_non_differentiable(weights)
        # else the gradient of the weights would arrive as zeros, as large as the weights
        ctx.set_materialize_grads(False)
        ctx.uses = uses
        return weights, query.new_zeros(MAX_USES)

    @staticmethod
    def backward(ctx: Any, _: None, went_through: Tensor) -> tuple[Tensor | None, ...]:
        query, key, pos_query, pos, weights, *kept = ctx.saved_tensors
        # in memory (B, T, H, K), as the projection of frames is: the gradient of that is then a view, not a copy
        d_query, d_key, d_pos_query = (
            x.new_empty([x.shape[axis] for axis in (0, 2, 1, 3)]).transpose(1, 2) for x in (query, key, pos_query)
        )
        d_pos = torch.zeros_like(pos)
        # factors of an earlier backward pass that stopped before the weights are multiplied by 0
        uses = [(use[0] * through, use[1]) for use, through in zip(ctx.uses, went_through, strict=False) if use]
        for number, block in enumerate(blocks(weights)):
            scores = _through_softmax(weights[block], [(d_y[block], values[block]) for d_y, values in uses])
            if ctx.limit is not None:
                again = partial(_scores, query[block], key[block], pos_query[block], pos)
                ctx.limit.pull_(scores, kept[number], again, weights[block])
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


def _scores(query: Tensor, key: Tensor, pos_query: Tensor, pos: Tensor) -> Tensor:
    """Return the scores (b, H, T, S) of `attention_weights`, without the mask."""
    return (query @ key.mT).add_(by_distance(pos_query @ pos, key.shape[2]))


def _through_softmax(weights: Tensor, uses: list[Use]) -> Tensor:
    """Return the gradient by the scores of all uses of the weights."""
    gradient = torch.zeros_like(weights)
    for d_attended, values in uses:
        # a use of the first head alone has one head here
        gradient[:, : values.shape[1]] += d_attended @ values.mT
    gradient *= weights
    return gradient.addcmul_(weights, gradient.sum(dim=-1, keepdim=True), value=-1)


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


def by_head(x: Tensor, num_heads: int) -> Tensor:
    """Return the channels of each head (B, H, T, K) of x (B, T, H · K)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


class RelPositionMultiheadAttentionWeights(nn.Module):
    """Weights of heads whose scores are query · key, plus position query · relative position.

    There is no division by √K: initial queries and keys are K^−¼ as large instead.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
    """

    def __init__(self, batch_count: BatchCount, size: LayerSize) -> None:
        super().__init__()
        self.batch_count, self.num_heads = batch_count, size.num_heads
        query_dim, pos_query_dim = size.num_heads * size.query_head_dim, size.num_heads * size.pos_head_dim
        # queries, keys and position queries come from one matrix product
        self.dims = query_dim, query_dim, pos_query_dim
        self.in_proj = scaled_linear(size.encoder_dim, sum(self.dims), scale=size.query_head_dim**-0.25)
        self.linear_pos = scaled_linear(size.pos_dim, pos_query_dim, scale=0.05, bias=False)
        heads = {"heads": size.num_heads}
        self.matrix_blocks = {"in_proj.weight": {"blocks": self.dims, **heads}, "linear_pos.weight": heads}
        # scores do not depend on the mean of the keys, whose bias would wander with rounding errors
        self.balance_keys = Balancer(batch_count, 0.4, 0.6, 0.0, 100.0, probability=0.025)
        self.whiten_keys = Whiten(batch_count, 3.0, ratio=2.0, gradient_scale=0.025, num_groups=size.num_heads)

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
        limit = SignPenalty() if self.training and self.batch_count.is_active(PENALTY_PROBABILITY) else None
        pos = self.linear_pos(pos_emb).t().unflatten(0, (self.num_heads, -1))
        query, key, pos_query = (by_head(each, self.num_heads) for each in (query, key, pos_query))
        return attention_weights(query, key, pos_query, pos, attn_mask, limit)


class SelfAttention(nn.Module):
    """Projects frames to values, averages them by attention weights, and projects them back."""

    def __init__(self, batch_count: BatchCount, size: LayerSize) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.in_proj = nn.Linear(size.encoder_dim, size.num_heads * size.value_head_dim)
        self.out_proj = scaled_linear(size.num_heads * size.value_head_dim, size.encoder_dim, scale=0.05)
        self.matrix_blocks = {"in_proj.weight": {"heads": size.num_heads}}
        self.whiten = Whiten(batch_count, 7.5, ratio=3.0)

    def forward(self, x: Tensor, weights: AttentionWeights, cache: StreamingCache) -> Tensor:
        """Attend from every frame of x (B, T, D)."""
        values = by_head(cache.extend(self.in_proj(x)), self.num_heads)
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
        self.matrix_blocks = {"in_proj.weight": {"blocks": 3}}
        self.out_proj = scaled_linear(hidden_channels, channels, scale=0.05)
        self.balancer = Balancer(
            batch_count,
            ScheduledFloat(batch_count, (0.0, 0.25), (20_000.0, 0.05)),
            ScheduledFloat(batch_count, (0.0, 0.75), (20_000.0, 0.95)),
            0.5,
            5.0,
        )
        self.whiten1 = Whiten(batch_count, 5.0, ratio=2.0)
        self.whiten2 = Whiten(batch_count, 5.0, ratio=3.0)

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


class FeedforwardModule(nn.Module):
    """A linear map, SwooshL, and a linear map back."""

    def __init__(self, batch_count: BatchCount, embed_dim: int, feedforward_dim: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(embed_dim, feedforward_dim)
        self.balancer = Balancer(batch_count, 0.3, 1.0, 0.75, 5.0)
        self.out_proj = ActivationDropoutAndLinear(feedforward_dim, embed_dim, SWOOSH_L, scale=0.1)
        self.out_whiten = Whiten(batch_count, 7.5, ratio=2.0)

    def forward(self, x: Tensor, dropout: Tensor | None = None) -> Tensor:
        """Map x (B, T, D); factors (B, 1, H) of the hidden channels are those of dropout."""
        return self.out_whiten(self.out_proj(self.balancer(self.in_proj(x)), dropout))


class ChunkCausalDepthwiseConv1d(nn.Module):
    """Depthwise convolution that sees the past, and the future no further than the end of the frame's chunk.

    A causal convolution of half the width, plus one of the whole width within each chunk, whose output is multiplied by
    1 + a learned scale, because near its ends a chunk lacks neighbors.

    Reference:
        ``ChunkCausalDepthwiseConv1d`` of icefall.
        Differs: neither the end of a batch nor an utterance shorter than a chunk makes a chunk shorter.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.causal_conv = nn.Conv1d(channels, channels, (kernel_size + 1) // 2, groups=channels)
        assert self.causal_conv.bias is not None
        nn.init.uniform_(self.causal_conv.bias, -BIAS_RANGE, BIAS_RANGE)
        self.chunkwise_conv = DepthwiseConv1d(channels, kernel_size)
        self.chunkwise_conv_scale = nn.Parameter(torch.zeros(2, channels, kernel_size))
        self.matrix_blocks = {"chunkwise_conv_scale": {"blocks": 0}}

    def forward(self, x: Tensor, lengths: Tensor, chunks: Chunks | None, cache: StreamingCache) -> Tensor:
        """Convolve x (B, T, D) of valid lengths (B,) in chunks; None makes each utterance one chunk."""
        past = cache.pad(x, self.kernel_size // 2)
        past = depthwise_conv1d(past, self.causal_conv.weight, self.causal_conv.bias)
        if chunks is None:
            return past + self.chunkwise_conv(x) * self.chunk_scale(torch.arange(x.shape[1], device=x.device), lengths)
        # a chunk ends where it would in a longer utterance: else the last one would depend on what comes later
        if isinstance(size := chunks.size, Tensor):
            frames, ends = torch.arange(x.shape[1], device=x.device), size.reshape(1)
            return past + self._convolved_by_turns(x, frames // size, chunks) * self.chunk_scale(frames % size, ends)
        # chunks become rows of the batch, so that the convolution pads each of them with zeros
        rows = F.pad(x, (0, 0, 0, -x.shape[1] % size)).unflatten(1, (-1, size))
        # not torch.tensor, which waits for a GPU to have copied it
        ends = torch.full((1,), size, device=x.device)
        within = self.chunkwise_conv(rows.flatten(0, 1)) * self.chunk_scale(torch.arange(size, device=x.device), ends)
        return past + within.reshape(x.shape[0], -1, x.shape[2])[:, : x.shape[1]]

    def _convolved_by_turns(self, x: Tensor, chunk_of: Tensor, chunks: Chunks) -> Tensor:
        """Convolve within chunks whose size is on the device, where no shape can depend on it.

        The chunks take turns. Those of one turn are so far apart that no kernel reaches from one to the next, and what
        is between them is zero.

        Args:
            x: (B, T, D).
            chunk_of: (T,) number of each frame's chunk.
            chunks: their size is a tensor.
        """
        num_turns = -(-(self.kernel_size // 2) // chunks.smallest) + 1
        turns = torch.arange(num_turns, device=x.device)[:, None, None, None]
        is_turn = chunk_of[None, None, :, None] % num_turns == turns
        alone = torch.where(is_turn, x, 0.0).flatten(0, 1)
        return self.chunkwise_conv(alone).unflatten(0, (num_turns, -1)).where(is_turn, 0.0).sum(dim=0)

    def chunk_scale(self, frames: Tensor, ends: Tensor) -> Tensor:
        """Return factors (E, T, D) for frames (T,), counted in their chunks, which end at ``ends`` (E,)."""
        # the last row is for frames that are not near an end
        left, right = F.pad(self.chunkwise_conv_scale, (0, 1)).transpose(1, 2)
        far = self.kernel_size
        place = frames + far - ends.unsqueeze(1)
        place = torch.where((place >= 0) & (place < far), place, far)
        return 1.0 + left[frames.clamp(max=far)] + right[place]


class ConvolutionModule(nn.Module):
    """A gated linear unit, a depthwise convolution, SwooshR and a linear map."""

    def __init__(self, batch_count: BatchCount, size: LayerSize) -> None:
        super().__init__()
        channels = size.encoder_dim
        self.in_proj = nn.Linear(channels, 2 * channels)
        self.matrix_blocks = {"in_proj.weight": {"blocks": 2}}
        self.balancer1 = Balancer(
            batch_count,
            ScheduledFloat(batch_count, (0.0, 0.05), (8000.0, 0.025)),
            1.0,
            1.5,
            ScheduledFloat(batch_count, (0.0, 5.0), (8000.0, 10.0)),
        )
        self.depthwise_conv: ChunkCausalDepthwiseConv1d | DepthwiseConv1d
        self.depthwise_conv = (ChunkCausalDepthwiseConv1d if size.causal else DepthwiseConv1d)(
            channels, size.cnn_module_kernel
        )
        self.balancer2 = Balancer(
            batch_count,
            ScheduledFloat(batch_count, (0.0, 0.1), (8000.0, 0.05)),
            1.0,
            ScheduledFloat(batch_count, (0.0, 0.2), (20_000.0, 0.5)),
            10.0,
        )
        self.whiten = Whiten(batch_count, 7.5, ratio=2.0)
        self.out_proj = ActivationDropoutAndLinear(channels, channels, SWOOSH_R, scale=0.05)

    def forward(self, x: Tensor, padding: Tensor, chunks: Chunks | None, cache: StreamingCache) -> Tensor:
        """Convolve x (B, T, D); padding (B, T) true after an utterance's end; chunks None: all in one."""
        x, gate = self.in_proj(x).chunk(2, dim=-1)
        # the convolution would carry padding into the last valid frames
        x = gated(x, self.balancer1(gate), torch.sigmoid, padding.unsqueeze(2))
        if isinstance(self.depthwise_conv, ChunkCausalDepthwiseConv1d):
            x = self.depthwise_conv(x, (~padding).sum(dim=1), chunks, cache)
        else:
            x = self.depthwise_conv(x)
        return self.out_proj(self.whiten(self.balancer2(x)))


class _Mixture(Function):
    """before + (after − before) ⊙ scale of before and after (B, T, D), scale (D,) or (B, 1, D)."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, after: Tensor, scale: Tensor) -> Tensor:
        # autograd would keep both; of their difference 16 bits suffice, for only the gradient of the scale needs it
        difference = torch.sub(after, before, out=torch.empty_like(before, dtype=autocast_dtype(before)))
        ctx.save_for_backward(difference, scale)
        return torch.lerp(before, after, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        difference, scale = ctx.saved_tensors
        return gradient * (1 - scale), gradient * scale, (gradient * difference).sum_to_size(scale.shape)


class BypassModule(nn.Module):
    """before + (after − before) ⊙ scale, with a learned scale per channel.

    Early in training the scale is kept near 1, so that every module learns something.
    """

    def __init__(self, batch_count: BatchCount, embed_dim: int) -> None:
        super().__init__()
        self.bypass_scale = nn.Parameter(torch.full((embed_dim,), 0.5))
        self.scale_min = ScheduledFloat(batch_count, (0.0, 0.9), (20_000.0, 0.2))

    def forward(
        self, before: Tensor, after: Tensor, limits: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return the mixture of (B, T, D) and (B, T, D).

        Args:
            before: what went into the modules in between.
            after: what came out of them.
            limits: (2,) of the scale; None: it is not limited.
            mask: (B, 1, 1), 0 for utterances that go past the modules; None: none does.
        """
        scale = masked(limit_param_value(self.bypass_scale, limits), mask).to(before.dtype)
        if is_tracing():
            return torch.lerp(before, after, scale)
        return _Mixture.apply(before, after, scale)


def last_repeated(x: Tensor, lengths: Tensor, multiple: int) -> Tensor:
    """Return x (B, T, D) with the last of the valid ``lengths`` (B,) frames repeated, to a multiple of frames."""
    missing = -x.shape[1] % multiple
    if is_tracing() or missing:
        x = F.pad(x, (0, 0, 0, missing))
    last = (lengths - 1).clamp(min=0)
    if is_tracing():
        newest = x.gather(1, last[:, None, None].expand(-1, 1, x.shape[2]))
    else:  # `gather`, which other programs have, would keep all of x in the graph
        newest = x[torch.arange(len(x), device=x.device), last].unsqueeze(1)
    return torch.where(is_padding(last + 1, x.shape[1]).unsqueeze(2), newest, x)


class SimpleDownsample(nn.Module):
    """Averages each ``factor`` frames in a row with learned weights; the last frame fills up its group."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor
        # not "bias" as in icefall: biases of zero get random values when a recognizer is built
        self.logits = nn.Parameter(torch.zeros(factor))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return ⌈T / factor⌉ frames of x (B, T, D), whose valid frames are ``lengths`` (B,)."""
        # padding would enter the last group of a shorter utterance
        x = last_repeated(x, lengths, self.factor)
        weights = self.logits.softmax(dim=0).to(x.dtype)
        # not as a matrix product, which autocast would round to 16 bits: all layers add to this sum
        groups = x.view(x.shape[0], -1, self.factor, x.shape[2])
        if is_tracing():
            return (groups * weights.unsqueeze(1)).sum(dim=2)
        return _WeightedSum.apply(groups, weights)


class _WeightedSum(Function):
    """The sum over K of groups (B, T, K, D) times weights (K,)."""

    @staticmethod
    def forward(ctx: Any, groups: Tensor, weights: Tensor) -> Tensor:
        # 16 bits suffice for the gradient of the weights
        ctx.save_for_backward(groups.to(autocast_dtype(groups)), weights)
        return (groups * weights.unsqueeze(1)).sum(dim=2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        groups, weights = ctx.saved_tensors
        gradient = gradient.unsqueeze(2)
        return gradient * weights.unsqueeze(1), (gradient * groups).sum(dim=(0, 1, 3))
