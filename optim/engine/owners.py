"""Rules that need whole parameters, on shards: each parameter has an owner, which gathers, steps and returns it.

The statistics of a parameter live with its owner alone, so that their memory falls with the number of processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from optim.engine.distributed import assign, needs_whole, places
from optim.engine.param_batch import Group, ParamEntry, Shard
from optim.engine.transform import Transform

SMALL_NUMEL = 1 << 16
"""Smaller parameters travel together, whatever their shapes: a message each would cost its latency."""


def deal(transforms: Sequence[Transform], groups: Sequence[Group]) -> dict[Tensor, int]:
    """Return the owner of every sharded parameter whose group needs whole ones: its rank among those that hold parts.

    Equal in all processes. A group that is added later changes no owner.
    """
    owners: dict[Tensor, int] = {}
    loads: dict[int, list[float]] = {}
    for group in groups:
        by_size: dict[int, list[Tensor]] = defaultdict(list)
        for param in group["params"] if needs_whole(transforms, group) else ():
            for place in places(param):
                by_size[place.size].append(param)
        for size, alike in by_size.items():
            # elements stand for memory; matrices of equal shape, which cost the same time, are spread evenly anyway
            ranks = assign([param.numel() for param in alike], size, loads.setdefault(size, [0.0] * size))
            owners |= zip(alike, ranks, strict=True)
    return owners


def whole_entries(entries: Sequence[ParamEntry]) -> Iterator[list[ParamEntry]]:
    """Yield the parameters that this process owns, whole and with their gradients, and send back what became of them.

    All processes must iterate, with the same entries. Those of one shape travel by one all-to-all each way; the next
    ones are on their way while the caller steps.
    """
    kinds: dict[Any, list[ParamEntry]] = defaultdict(list)
    for entry in entries:
        like = entry.param.dtype, entry.grad.dtype, entry.param.device
        shape = entry.shape if entry.shape.numel() >= SMALL_NUMEL else None
        kinds[shape, _shard(entry).places, like].append(entry)
    former: _Messages | None = None
    for messages in [*map(_Messages, kinds.values()), None]:
        if messages is not None:
            messages.send()
        if former is not None:
            mine = former.receive()
            yield mine
            former.send_back(mine)
        former = messages


class _Messages:
    """Parameters and gradients of one kind on their way to their owners, and back."""

    def __init__(self, entries: Sequence[ParamEntry]) -> None:
        self.place = _shard(entries[0]).places[0]
        self.entries = sorted(entries, key=lambda entry: _shard(entry).owner or 0)
        self.mine = [entry for entry in self.entries if _shard(entry).owner == self.place.rank]
        self.dtype = torch.promote_types(entries[0].param.dtype, entries[0].grad.dtype)
        # elements that go to each rank, and that come from it
        self.outgoing, self.incoming = [0] * self.place.size, [0] * self.place.size
        for entry in self.entries:
            self.outgoing[_shard(entry).owner or 0] += entry.param.numel()
        for rank in range(self.place.size):
            self.incoming[rank] = sum(self._part(entry.shape, rank).numel() for entry in self.mine)

    def _part(self, whole: torch.Size, rank: int) -> torch.Size:
        """Return the shape of the part of a parameter that a rank holds."""
        shape, axis = list(whole), self.place.axis
        # as torch.chunk divides: the last ranks may hold less, or nothing
        chunk = -(-shape[axis] // self.place.size)
        shape[axis] = max(0, min(chunk, shape[axis] - rank * chunk))
        return torch.Size(shape)

    def send(self) -> None:
        """Start to send all parts to their owners."""
        parts = [x.reshape(-1).to(self.dtype) for entry in self.entries for x in (entry.param, entry.grad)]
        self.sent = torch.cat(parts)
        self.received = self.sent.new_empty(2 * sum(self.incoming))
        self.work = self._exchange(self.received, self.sent, 2)

    def _exchange(self, received: Tensor, sent: Tensor, copies: int = 1, back: bool = False) -> Any:
        incoming, outgoing = ([copies * n for n in sizes] for sizes in (self.incoming, self.outgoing))
        if back:
            incoming, outgoing = outgoing, incoming
        return dist.all_to_all_single(received, sent, incoming, outgoing, self.place.group, async_op=True)

    def receive(self) -> list[ParamEntry]:
        """Return what this process owns, whole; to be changed in place."""
        self.work.wait()
        wholes = [entry.shape for entry in self.mine for _ in range(2)]
        shapes = [self._part(whole, rank) for rank in range(self.place.size) for whole in wholes]
        parts = [
            part.view(shape)
            for part, shape in zip(self.received.split([shape.numel() for shape in shapes]), shapes, strict=True)
        ]
        joined = [torch.cat(parts[i :: len(wholes)], self.place.axis) for i in range(len(wholes))]
        del self.sent, self.received
        return [
            entry._replace(param=param.to(entry.param.dtype), grad=grad, shard=None)
            for entry, param, grad in zip(self.mine, joined[::2], joined[1::2], strict=True)
        ]

    def send_back(self, mine: Sequence[ParamEntry]) -> None:
        """Put the moved parameters into their parts."""
        axis, first = self.place.axis, self.entries[0].param
        pieces = [
            entry.param.split([self._part(entry.param.shape, rank)[axis] for rank in range(self.place.size)], axis)
            for entry in mine
        ]
        sent = [piece[rank].reshape(-1) for rank in range(self.place.size) for piece in pieces]
        received = first.new_empty(sum(self.outgoing))
        self._exchange(received, torch.cat(sent) if sent else first.new_empty(0), back=True).wait()
        params = [entry.param for entry in self.entries]
        for param, part in zip(params, received.split([param.numel() for param in params]), strict=True):
            param.copy_(part.view(param.shape))


def _shard(entry: ParamEntry) -> Shard:
    assert entry.shard is not None
    return entry.shard
