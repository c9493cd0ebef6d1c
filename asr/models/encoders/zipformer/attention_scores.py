"""Attention weights from queries, keys and relative positions, in as little memory as it takes.

B batch, T target frames, S source frames, H heads, K head width of queries and keys, R head width of position queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

MASKED = -1000.0  # far enough that its exponential is 0, near enough that a row of it alone is finite
LARGEST_SCORE, PENALTY = 25.0, 1e-4
CACHED_SCORES = 2**20  # that one step on a CPU handles


def by_distance(scores: Tensor, num_sources: int) -> Tensor:
    """View scores (…, T, T + S − 1), by distance, as (…, T, S), by source.

    The row of target t begins T − 1 − t places from the left: each row down, one place less.
    """
    num_targets = scores.shape[-2]
    *outer, row, column = scores.stride()
    offset = scores.storage_offset() + column * (num_targets - 1)
    return scores.as_strided((*scores.shape[:-1], num_sources), (*outer, row - column, column), offset)


def attention_weights(
    query: Tensor, key: Tensor, position_query: Tensor, positions: Tensor | None, masked: Tensor, penalise: bool
) -> tuple[Tensor, Tensor]:
    """Return softmax(query · key + position_query · position) over the sources.

    Args:
        query: (B, H, T, K).
        key: (B, H, S, K).
        position_query: (B, H, T, R).
        positions: (H, R, T + S − 1), from the farthest past to the farthest future; None: scores without them.
        masked: (B, 1, T or 1, S) bool, true where there is nothing to attend to.
        penalise: whether scores beyond ±25 are pulled back, by a gradient of 1e-4.

    Returns:
        Weights (B, H, T, S), and those of the first head (B, T, S) once more: its gradient comes by itself, where that
        of a slice would fill the whole with zeros.
    """
    weights: tuple[Tensor, Tensor] = _Weights.apply(query, key, position_query, positions, masked, penalise)
    return weights


class _Weights(Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        position_query: Tensor,
        positions: Tensor | None,
        masked: Tensor,
        penalise: bool,
    ) -> tuple[Tensor, Tensor]:
        weights = query.new_empty(*query.shape[:3], key.shape[2])
        excess = torch.empty_like(weights, dtype=torch.int8) if penalise else None
        for part in _parts(weights):
            scores = query[part] @ key[part].mT
            if positions is not None:
                scores += by_distance(position_query[part] @ positions, key.shape[2])
            if excess is not None:
                excess[part] = scores.sign() * (scores.abs() > LARGEST_SCORE)
            weights[part] = scores.masked_fill_(masked[part], MASKED).softmax(dim=-1)
        ctx.save_for_backward(query, key, position_query, positions, masked, weights, excess)
        ctx.set_materialize_grads(False)
        return weights, weights[:, 0]

    @staticmethod
    def backward(ctx: Any, d_weights: Tensor | None, d_first: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, position_query, positions, masked, weights, excess = ctx.saved_tensors
        d_weights = torch.zeros_like(weights) if d_weights is None else d_weights
        d_query, d_key, d_position_query = (_like_frames(x) for x in (query, key, position_query))
        d_positions = None if positions is None else torch.zeros_like(positions)
        for part in _parts(weights):
            scores = _softmax_backward(weights[part], d_weights[part], None if d_first is None else d_first[part])
            scores.masked_fill_(masked[part], 0.0)
            if excess is not None:
                scores.add_(excess[part], alpha=PENALTY)
            d_query[part] = scores @ key[part]
            d_key[part] = scores.mT @ query[part]
            if positions is None:
                d_position_query[part] = 0.0
                continue
            by_place = scores.new_zeros(*scores.shape[:3], positions.shape[2])
            by_distance(by_place, key.shape[2]).copy_(scores)
            d_position_query[part] = by_place @ positions.mT
            d_positions += (position_query[part].mT @ by_place).sum(dim=0)
        return d_query, d_key, d_position_query, d_positions, None, None


def _parts(weights: Tensor) -> Iterator[slice]:
    """Divide the batch so that what one step handles stays in the cache of a CPU; a GPU takes it at once."""
    batch = weights.shape[0]
    size = batch if weights.is_cuda else max(1, CACHED_SCORES // max(1, weights[0].numel()))
    return (slice(start, start + size) for start in range(0, batch, size))


def _like_frames(x: Tensor) -> Tensor:
    """Return an empty (B, H, T, K) that lies in memory as (B, T, H, K), as the projection of frames does."""
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)


def _softmax_backward(weights: Tensor, d_weights: Tensor, d_first: Tensor | None) -> Tensor:
    """Return the gradient by the scores; that of the first head's weights comes in two parts."""
    scores = d_weights * weights
    if d_first is not None:
        scores[:, 0].addcmul_(d_first, weights[:, 0])
    return scores.addcmul_(weights, scores.sum(dim=-1, keepdim=True), value=-1)
