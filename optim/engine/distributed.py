"""Distributed runs: parameters divided over processes, checks that all agree on, and work that they share."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten
from torch.nn.utils import get_total_norm

from optim.engine.param_batch import Group, ParamEntry, Place, Shard
from optim.engine.transform import Transform

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


Input = TypeVar("Input")


def _is_dtensor(x: Any) -> TypeGuard[DTensor]:
    # to import the class takes a second, and nobody has such a tensor without having imported it
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def local(x: Any) -> Any:
    """Return the part of a tensor that this process holds; anything else as it is."""
    return x.to_local() if _is_dtensor(x) else x


def on_cpu(x: Any) -> Any:
    """Return a tensor on the CPU, whole if it is sharded: all processes must call this; anything else as it is."""
    whole = x.full_tensor() if _is_dtensor(x) else x
    return whole.cpu() if isinstance(whole, Tensor) else whole


def part_like(x: Any, like: Any) -> Any:
    """Return the part of a whole tensor that belongs here, divided like another one; anything else as it is."""
    if not _is_dtensor(like) or not isinstance(x, Tensor) or _is_dtensor(x):
        return x
    from torch.distributed.tensor import distribute_tensor

    # None: every process has the whole, and nothing is sent
    return distribute_tensor(x.to(like.device_mesh.device_type), like.device_mesh, like.placements, src_data_rank=None)


def replicated(x: Any) -> Any:
    """Return a statistic of a sharded parameter of which every process has only its share, such as a norm, whole."""
    if not _is_dtensor(x) or not any(placement.is_partial() for placement in x.placements):
        return x
    from torch.distributed.tensor import Replicate

    return x.redistribute(placements=[Replicate() if place.is_partial() else place for place in x.placements])


def local_entry(entry: ParamEntry, owner: int | None = None) -> ParamEntry:
    """Return an entry with the parts that this process holds; an entry that is not sharded as it is.

    The statistics that are saved stay DTensors, of which checkpoints know how to join the parts.

    Args:
        entry: its gradient is sharded as the parameter is.
        owner: rank that steps the whole parameter, if it has one; its statistics are not sharded.
    """
    param = entry.param
    if not _is_dtensor(param):
        return entry
    state = entry.state
    if owner is None:
        state = {key: local(value) for key, value in state.items()}
        if not isinstance(state["step"], Tensor):
            entry.state["step"] += 1  # `batches` counts the copy; a tensor is the same in both
    shard = Shard(param.shape, places(param), owner)
    return entry._replace(param=local(param), grad=local(entry.grad), state=state, shard=shard)


def places(param: Tensor) -> tuple[Place, ...]:
    """Return where the part of a parameter lies that this process holds; empty if it holds the whole."""
    if not _is_dtensor(param):
        return ()
    mesh, placements = param.device_mesh, cast(Any, param.placements)
    return tuple(
        Place(place.dim, mesh.get_group(i), mesh.size(i), mesh.get_local_rank(i))
        for i, place in enumerate(placements)
        if place.is_shard()
    )


def whole_norms(norms: Sequence[Tensor], entries: Sequence[ParamEntry]) -> list[Tensor]:
    """Return the Euclidean norms of whole tensors, given those of the parts of entries that this process holds."""
    norms = list(norms)
    alike: dict[Any, list[int]] = defaultdict(list)
    for i, (norm, entry) in enumerate(zip(norms, entries, strict=True)):
        if entry.shard is not None and entry.shard.places:
            alike[entry.shard.places, norm.dtype].append(i)
    for (held, _), members in alike.items():
        squares = torch.stack([norms[i] for i in members]).square_()
        for place in held:
            dist.all_reduce(squares, group=place.group)
        for i, norm in zip(members, squares.sqrt_().unbind(), strict=True):
            norms[i] = norm
    return norms


def needs_whole(transforms: Sequence[Transform], group: Group) -> list[Transform]:
    """Return the active transforms that need whole parameters: those that are not `shardable`; of blocks, all."""
    active = [transform for transform in transforms if not transform.is_noop(transform.unprefixed(group))]
    return [transform for transform in active if not transform.shardable or group.get("blocks")]


def sees_matrices(transforms: Sequence[Transform], group: Group) -> bool:
    """Return whether an active transform treats each parameter, or each block of it, as a whole by itself."""
    return any(not transform.joins_parameters for transform in needs_whole(transforms, group))


def check_sharded(owner: str, transforms: Sequence[Transform], group: Group, *, capturable: bool = False) -> None:
    """Refuse sharded parameters that cannot be gathered, if an active transform needs whole ones.

    Raises:
        ValueError: names a parameter, the transform and what to do.
    """
    needy = needs_whole(transforms, group)
    names = group.get("param_names", [f"parameter {i}" for i in range(len(group["params"]))])
    for name, param in zip(names, group["params"], strict=True) if needy else ():
        problem = ""
        if places(param) and any(transform.joins_parameters for transform in needy):
            problem = "sharded, and no process knows all others; train with DDP"
        elif len(places(param)) > 1 or any(type(p).__name__ not in ("Shard", "Replicate") for p in _placements(param)):
            problem = f"divided along several axes ({_placements(param)}); use fully_shard alone"
        elif places(param) and capturable:
            problem = "sharded, which a CUDA graph cannot gather; leave capturable out"
        elif places(param) and group.get("mars") and group.get("gradient_clipping") == "global_norm":
            problem = "sharded, and only its owner knows its gradient after MARS; use another gradient_clipping"
        if problem:
            raise ValueError(f"{owner}: {type(needy[0]).__name__} needs whole parameters, and {name} is {problem}")


def _placements(param: Tensor) -> tuple[Any, ...]:
    return param.placements if _is_dtensor(param) else ()


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Return whether no element of gradients of any shape is NaN or infinite on any process.

    Waits for the device once. If torch.distributed is initialized, every process must call this.
    """
    # amax of a tensor without elements raises
    gradients = [gradient for gradient in map(local, gradients) if gradient.numel() > 0]
    # the largest magnitude, unlike a sum of squares, cannot overflow; NaN passes through it
    largest = get_total_norm(gradients, norm_type=float("inf")) if gradients else torch.zeros(())
    bad = (~torch.isfinite(largest)).to(torch.float32)
    if dist.is_available() and dist.is_initialized():
        # NCCL reduces CUDA tensors only, also when a model's parameters are on the CPU
        if dist.get_backend() == "nccl":
            bad = bad.cuda()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return bad.item() == 0


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


def assign(costs: Sequence[float], num_ranks: int, loads: list[float] | None = None) -> list[int]:
    """Return the rank of each piece of work: the dearest first, each to the rank that has least to do.

    The rule of the longest processing time first: the busiest rank has at most 4/3 of the work that the best division
    would give it.

    Args:
        costs: of each piece.
        num_ranks: among whom they are divided.
        loads: what each rank has to do already, to which its new work is added.
    """
    owners, loads = [0] * len(costs), [0.0] * num_ranks if loads is None else loads
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
    ordered = sorted(kinds.items(), key=lambda item: (item[0][0], item[1]))
    messages = [(owner, places, flatten([results[place] for place in places])) for (owner, *_), places in ordered]
    # broadcasts and not all_gather: ranks may have different numbers of elements, and none pads
    broadcasts = [dist.broadcast(flat, src=owner, async_op=True) for owner, _, flat in messages]
    for broadcast, (_, places, flat) in zip(broadcasts, messages, strict=True):
        if broadcast is not None:  # of torch 2.14 on by its type: this process is in the group
            broadcast.wait()
        pieces = unflatten(flat, [results[place] for place in places])
        for place, piece in zip(places, pieces, strict=True):
            results[place] = piece
