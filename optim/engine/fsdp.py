"""Parameters divided over processes, as FSDP2 leaves them: each process steps the part that it holds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor

from optim.engine.param_batch import Group, ParamEntry, Shard
from optim.engine.transform import Transform

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def _is_dtensor(x: Any) -> TypeGuard[DTensor]:
    # to import the class takes a second, and nobody has such a tensor without having imported it
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def local(x: Any) -> Any:
    """Return the part of a tensor that this process holds; anything else as it is."""
    return x.to_local() if _is_dtensor(x) else x


def local_entry(entry: ParamEntry) -> ParamEntry:
    """Return an entry with the parts that this process holds; an entry that is not sharded as it is.

    The statistics that are saved stay DTensors, of which checkpoints know how to join the parts.
    """
    param = entry.param
    if not _is_dtensor(param):
        return entry
    state = {key: local(value) for key, value in entry.state.items()}
    if not isinstance(state["step"], Tensor):
        entry.state["step"] += 1  # `batches` counts the copy; a tensor is the same in both
    shard = Shard(param.shape, _groups(param))
    return entry._replace(param=local(param), grad=local(entry.grad), state=state, shard=shard)


def _groups(param: DTensor) -> tuple[Any, ...]:
    return tuple(param.device_mesh.get_group(i) for i, place in enumerate(param.placements) if place.is_shard())


def check_sharded(owner: str, transforms: Sequence[Transform], group: Group) -> None:
    """Refuse sharded parameters if a transform that is not idle needs whole ones.

    Raises:
        ValueError: a parameter is sharded, and a transform is not `shardable`.
    """
    active = [transform for transform in transforms if not transform.idle(transform.unprefixed(group))]
    needy = [type(transform).__name__ for transform in active if not transform.shardable]
    names = group.get("param_names", [f"parameter {i}" for i in range(len(group["params"]))])
    for name, param in zip(names, group["params"], strict=True) if needy else ():
        if _is_dtensor(param) and _groups(param):
            raise ValueError(
                f"{owner}: {name} is sharded, as by fully_shard, and {needy[0]} needs whole parameters; use "
                "an optimizer that treats elements alone, such as AdamW, or train with DDP"
            )
