"""Steps that a CUDA graph can replay: what changes from step to step is on the device, and nothing is decided by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, MutableMapping, Sequence

import torch
from torch import Tensor

from optim.engine.param_batch import Group, ParamEntry, State, state_dtype
from optim.engine.tensor_list import flattened, unflattened


def keep_counts_on_device(group: Group) -> None:
    """Turn the group's lr and its count of steps into tensors of their own, which a captured step reads each time."""
    if not group["params"]:
        return
    first = group["params"][0]
    place = {"dtype": state_dtype(first), "device": first.device}
    if group["lr"] is not None and not (isinstance(group["lr"], Tensor) and group["lr"].device == first.device):
        group["lr"] = torch.as_tensor(group["lr"], **place)
    group["shared_state"]["steps"] = torch.as_tensor(group["shared_state"]["steps"], **place).clone()


def share_counts(
    entries: Sequence[ParamEntry], states: Mapping[Tensor, State], shared_counts: MutableMapping[int, Tensor]
) -> Collection[Tensor]:
    """Let parameters with equal counts of steps share one 0-dimensional tensor, to step as one; return all counts.

    Args:
        entries: the parameters of this step.
        states: of all parameters of the optimizer, ``optimizer.state``.
        shared_counts: the shared tensors, by their id. Others are read, before any capture.
    """
    counts = {id(entry.state["step"]): entry.state["step"] for entry in entries if entry.shard is None}
    if not counts.keys() <= shared_counts.keys():
        # a tensor on the meta device has no value, and there all are new
        values = [0.0 if count.is_meta else count.item() for count in counts.values()]
        alike: dict[object, Tensor] = {}
        new = {
            key: alike.setdefault((value, count.dtype, count.device), count)
            for (key, count), value in zip(counts.items(), values, strict=True)
        }
        _replace(entries, new)
        shared_counts.update({id(count): count for count in new.values()})
    # the counts of those that do not step stand still
    stepping = {id(entry.state) for entry in entries}
    resting = {id(state["step"]) for state in states.values() if state and id(state) not in stepping}
    shared = {id(entry.state["step"]): entry.state["step"] for entry in entries if entry.shard is None}
    copies = {key: count.clone() for key, count in shared.items() if key in resting}
    _replace(entries, copies)
    shared_counts.update({id(count): count for count in copies.values()})
    return {id(entry.state["step"]): entry.state["step"] for entry in entries}.values()


def _replace(entries: Sequence[ParamEntry], new: Mapping[int, Tensor]) -> None:
    for entry in entries:
        entry.state["step"] = new.get(id(entry.state["step"]), entry.state["step"])


PIECE_NUMEL = 1 << 24  # of what is put back at once: large enough for a GPU, and little beside the copies


class Undo:
    """Takes back a step if a flag on the device says so: keeps a copy of what the step may change, in pieces.

    Args:
        groups: the groups of an optimizer, with the parameters of this step.
    """

    def __init__(self, groups: Sequence[tuple[Group, Sequence[ParamEntry]]]) -> None:
        holders = [entry.state for _, entries in groups for entry in entries] + [g["shared_state"] for g, _ in groups]
        self.params = [entry.param for _, entries in groups for entry in entries]
        # by name, because a step may replace a statistic by another tensor
        self.places = [(holder, key) for holder in holders for key, x in holder.items() if isinstance(x, Tensor)]
        # of one tensor, flattened is a view
        self.before = [flattened(piece) if len(piece) > 1 else piece[0].flatten().clone() for piece in self._pieces()]

    def __call__(self, found_inf: Tensor) -> None:
        """Put everything back if the flag is not zero."""
        for before, piece in zip(self.before, self._pieces(), strict=True):
            skips = found_inf.reshape(()).to(before.device) > 0
            after = flattened(piece)
            torch.where(skips, before, after, out=after)
            torch._foreach_copy_(piece, unflattened(after, piece))

    def _pieces(self) -> list[list[Tensor]]:
        """Return what may change, by dtype and device, in lists of at most ``PIECE_NUMEL`` elements or one tensor."""
        pieces_of: dict[tuple[torch.dtype, torch.device], list[list[Tensor]]] = defaultdict(list)
        room: dict[tuple[torch.dtype, torch.device], int] = defaultdict(int)
        for x in (*self.params, *(holder[key] for holder, key in self.places)):
            kind = x.dtype, x.device
            if not pieces_of[kind] or room[kind] < x.numel():
                pieces_of[kind].append([])
                room[kind] = PIECE_NUMEL
            pieces_of[kind][-1].append(x)
            room[kind] -= x.numel()
        return [piece for pieces in pieces_of.values() for piece in pieces]
