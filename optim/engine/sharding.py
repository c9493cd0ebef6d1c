"""Work on many tensors, divided over the processes of a distributed run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Input = TypeVar("Input")


def divided(
    function: Callable[[Input], Sequence[Tensor]],
    inputs: Sequence[Input],
    costs: Sequence[float],
    like: Sequence[Sequence[Tensor]],
) -> list[Sequence[Tensor]]:
    """Return ``function`` of every input; each process computes a part of them and sends its results to the others.

    Every process gets the bits of the one that computed. On equal devices these are the bits of the undivided work,
    because an input is never cut. With one process, or without torch.distributed, nothing is sent.

    Args:
        function: must depend on the input alone, since only one process calls it.
        inputs: the same in all processes, which must call this together.
        costs: time of each input, in any unit; equal in all processes.
        like: for each input, tensors with the shapes, dtypes and devices of its results. NCCL needs CUDA tensors.

    Returns:
        The results of each input.
    """
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if world == 1:
        return [function(x) for x in inputs]
    owners, rank = assign(costs, world), dist.get_rank()
    results = [
        function(x) if owner == rank else [torch.empty_like(y, memory_format=torch.contiguous_format) for y in empty]
        for x, owner, empty in zip(inputs, owners, like, strict=True)
    ]
    flat = [y for outputs in results for y in outputs]
    _exchange(flat, [owner for owner, outputs in zip(owners, results, strict=True) for _ in outputs])
    exchanged = iter(flat)
    return [[next(exchanged) for _ in outputs] for outputs in results]


def assign(costs: Sequence[float], num_ranks: int) -> list[int]:
    """Return the rank of each piece of work: the dearest first, each to the rank that has least to do.

    The rule of the longest processing time first: the busiest rank has at most 4/3 of the work that the best division
    would give it.
    """
    owners, loads = [0] * len(costs), [0.0] * num_ranks
    # sorted is stable and min takes the first: all processes come to the same answer
    for place in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owners[place] = min(range(num_ranks), key=loads.__getitem__)
        loads[owners[place]] += costs[place]
    return owners


def _exchange(results: list[Tensor], owners: Sequence[int]) -> None:
    """Replace the results that other ranks own by what they computed."""
    # one message per rank and kind of tensor: many small ones would cost their latency each
    kinds: dict[tuple[int, torch.dtype, torch.device], list[int]] = defaultdict(list)
    for place, (result, owner) in enumerate(zip(results, owners, strict=True)):
        kinds[owner, result.dtype, result.device].append(place)
    # sorted by rank and by the first place, which are equal in all processes
    messages = sorted(kinds.items(), key=lambda item: (item[0][0], item[1]))
    flats = [torch.cat([results[place].reshape(-1) for place in places]) for _, places in messages]
    # broadcasts and not all_gather: ranks may have different numbers of elements, and none pads
    broadcasts = [
        dist.broadcast(flat, src=owner, async_op=True) for flat, ((owner, *_), _) in zip(flats, messages, strict=True)
    ]
    for broadcast, flat, (_, places) in zip(broadcasts, flats, messages, strict=True):
        broadcast.wait()
        pieces = flat.split([results[place].numel() for place in places])
        for place, piece in zip(places, pieces, strict=True):
            results[place] = piece.view(results[place].shape)
