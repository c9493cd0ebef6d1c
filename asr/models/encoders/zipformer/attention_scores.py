"""Attention weights from queries, keys and relative positions, in as little memory as it takes.

B batch, T target frames, S source frames, H heads, K head width of queries and keys, R head width of position queries,
V head width of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from asr.models.encoders.zipformer.pieces import pieces

LARGEST_SCORE, PENALTY = 25.0, 1e-4  # beside gradients of a loss that is summed over utterances
MOST_USES = 3  # of the weights of a layer

Use = tuple[Tensor, Tensor]


def by_distance(scores: Tensor, num_sources: int) -> Tensor:
    """View scores (…, T, T + S − 1), by distance, as (…, T, S), by source.

    The row of target t begins T − 1 − t places from the left: each row down, one place less.
    """
    num_targets = scores.shape[-2]
    *outer, row, column = scores.stride()
    offset = scores.storage_offset() + column * (num_targets - 1)
    return scores.as_strided((*scores.shape[:-1], num_sources), (*outer, row - column, column), offset)


@dataclass(frozen=True)
class Weights:
    """Attention weights, and what their gradient will be made of.

    A gradient of every use would be T × S per head, written to memory and added up there. So each use notes the two
    narrow factors of its gradient, and the weights' own backward pass multiplies them out, piece by piece. A backward
    pass may stop short of the weights, or go through some uses alone: which of the notes are its own is told by the
    gradient of ``handle``.

    Attributes:
        values: (B, H, T, S); each row sums to 1.
        handle: (``MOST_USES``,), of no value: what ties the uses to the weights in autograd's graph. Its gradient is 1
            for each use that the backward pass went through, else 0.
        uses: (gradient of what was attended to, values less their mean) of each use, both (B, H or 1, T or S, V).
    """

    values: Tensor
    handle: Tensor
    uses: list[Use | None]


def attention_weights(
    query: Tensor, key: Tensor, position_query: Tensor, positions: Tensor | None, unseen: Tensor, penalise: bool
) -> Weights:
    """Return softmax(query · key + position_query · position + unseen) over the sources.

    Args:
        query: (B, H, T, K).
        key: (B, H, S, K).
        position_query: (B, H, T, R).
        positions: (H, R, T + S − 1), from the farthest past to the farthest future; None: scores without them.
        unseen: (B, 1, T or 1, S), 0 where a frame may attend to, and far below where not.
        penalise: whether scores beyond ±25 are pulled back, by a gradient of 1e-4.
    """
    uses: list[Use | None] = []
    values, handle = _Weights.apply(query, key, position_query, positions, unseen, penalise, uses)
    return Weights(values, handle, uses)


def attend(weights: Weights, values: Tensor) -> Tensor:
    """Return averages (B, H, T, V) of values (B, H, S, V); where H is 1 there, the first head's weights are used.

    At most ``MOST_USES`` times with the same weights.
    """
    attended: Tensor = _Attend.apply(values, weights.handle, weights.values, weights.uses)
    return attended


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, handle: Tensor, weights: Tensor, uses: list[Use | None]) -> Tensor:
        ctx.save_for_backward(values, weights)
        ctx.uses, ctx.number = uses, len(uses)
        uses.append(None)
        return weights[:, : values.shape[1]] @ values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        values, weights = ctx.saved_tensors
        went_through = gradient.new_zeros(MOST_USES)
        went_through[ctx.number] = 1.0
        # the softmax takes away again what all sources have in common, which in 16 bits would drown what they have not
        ctx.uses[ctx.number] = (gradient, values - values.mean(dim=-2, keepdim=True))
        return weights[:, : values.shape[1]].mT @ gradient, went_through, None, None


class _Weights(Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        position_query: Tensor,
        positions: Tensor | None,
        unseen: Tensor,
        penalise: bool,
        uses: list[Use | None],
    ) -> tuple[Tensor, Tensor]:
        weights = query.new_empty(*query.shape[:3], key.shape[2])
        excess = torch.empty_like(weights, dtype=torch.int8) if penalise else None
        for part in pieces(weights):
            scores = query[part] @ key[part].mT
            if positions is not None:
                scores += by_distance(position_query[part] @ positions, key.shape[2])
            if excess is not None:
                excess[part] = scores.sign() * (scores.abs() > LARGEST_SCORE)
            weights[part] = (scores + unseen[part]).softmax(dim=-1)
        ctx.save_for_backward(query, key, position_query, positions, weights, excess)
        ctx.mark_non_differentiable(weights)
        ctx.set_materialize_grads(False)  # zeros as large as the weights
        ctx.uses = uses
        return weights, query.new_zeros(MOST_USES)

    @staticmethod
    def backward(ctx: Any, _: None, went_through: Tensor) -> tuple[Tensor | None, ...]:
        query, key, position_query, positions, weights, excess = ctx.saved_tensors
        d_query, d_key, d_position_query = (_like_frames(x) for x in (query, key, position_query))
        d_positions = None if positions is None else torch.zeros_like(positions)
        uses = [(use[0] * through, use[1]) for use, through in zip(ctx.uses, went_through, strict=False) if use]
        for part in pieces(weights):
            scores = _through_softmax(weights[part], [(d_y[part], values[part]) for d_y, values in uses])
            if excess is not None:
                scores.add_(excess[part], alpha=PENALTY)
            d_query[part] = scores @ key[part]
            d_key[part] = scores.mT @ query[part]
            if d_positions is None:
                d_position_query[part] = 0.0
                continue
            by_place = scores.new_zeros(*scores.shape[:3], positions.shape[2])
            by_distance(by_place, key.shape[2]).copy_(scores)
            d_position_query[part] = by_place @ positions.mT
            d_positions += (position_query[part].mT @ by_place).sum(dim=0)
        ctx.uses[:] = [None] * len(ctx.uses)
        return d_query, d_key, d_position_query, d_positions, None, None, None


def _through_softmax(weights: Tensor, uses: list[Use]) -> Tensor:
    """Return the gradient by the scores of all uses of the weights."""
    gradient = torch.zeros_like(weights)
    for d_attended, values in uses:
        gradient[:, : values.shape[1]] += d_attended @ values.mT
    gradient *= weights
    return gradient.addcmul_(weights, gradient.sum(dim=-1, keepdim=True), value=-1)


def _like_frames(x: Tensor) -> Tensor:
    """Return an empty (B, H, T, K) that lies in memory as (B, T, H, K), as the projection of frames does."""
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)
