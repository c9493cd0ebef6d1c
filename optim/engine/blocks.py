"""Parameters that are several matrices, or one in another order of axes: each is then stepped as if it were alone.

A group holds under ``blocks`` a mapping of names, "" for all, to what they are: a number of blocks, or their sizes,
times ``heads``, which cut the rows, and the axes (``dims``) that are rows; the other axes are columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from optim.engine.options import WHOLE, check_names, check_range, plain
from optim.engine.param_batch import DRAW_KEY, Group, ParamEntry, Part, State

DEFAULTS = {"blocks": 1, "heads": 1, "dims": (0,)}
INTERVALS = {"blocks": "[0, inf)", "heads": "[1, inf)", "dims": "(-inf, inf)"}
COUNTS = ("step", DRAW_KEY)


def parts_of(name: str, shape: Sequence[int], group: Mapping[str, Any]) -> tuple[Part, ...]:
    """Return the parts of a parameter; none if it is stepped as it is.

    Raises:
        ValueError: its rows are not as many as the blocks have.
    """
    specs = group.get("blocks")
    spec = (specs.get(name) or specs.get("")) if specs else None
    # a stand-in of another shape, as trials before training have it, is one tensor
    if spec is None or len(shape) < 2 or tuple(spec.get("shape", shape)) != tuple(shape):
        return ()
    blocks = spec["blocks"]
    blocks = blocks if isinstance(blocks, int) else tuple(blocks)
    return _parts(name, tuple(shape), blocks, spec["heads"], tuple(spec["dims"]))


@lru_cache(maxsize=4096)
def _parts(
    name: str, shape: tuple[int, ...], blocks: int | tuple[int, ...], heads: int, dims: tuple[int, ...]
) -> tuple[Part, ...]:
    if not blocks:
        return (Part(tuple(range(len(shape))), 0, shape[0], 0, torch.Size([prod(shape)])),)
    rows = tuple(dim % len(shape) for dim in dims)
    columns = tuple(axis for axis in range(len(shape)) if axis not in rows)
    length = shape[rows[0]]
    sizes = [length / blocks] * blocks if isinstance(blocks, int) else blocks
    cut = [size / heads for size in sizes for _ in range(heads)]
    are_axes = len({*rows}) == len(rows) < len(shape) and all(-len(shape) <= dim < len(shape) for dim in dims)
    if not are_axes or sum(cut) != length or any(size % 1 for size in cut):
        raise ValueError(
            f"{name} {shape} cannot be blocks={blocks} of heads={heads} with the rows dims={dims}: dims must be some "
            "of its axes, and blocks times heads divide the length of the first, or the sizes of blocks add up to it"
        )
    parts, start = list[Part](), 0
    for size, run in groupby(map(int, cut)):
        count = len(list(run))
        block = torch.Size([size * prod(shape[axis] for axis in rows[1:]), prod(shape[axis] for axis in columns)])
        parts.append(Part((*rows, *columns), start, start + count * size, count if count > 1 else 0, block))
        start += count * size
    if len(parts) == 1:
        return () if parts[0].whole == shape and rows == (0,) else tuple(parts)
    return tuple(part._replace(suffix=f"@{i}") for i, part in enumerate(parts))


def settle(owner: str, group: dict[str, Any]) -> None:
    """Check what a group says about blocks, and keep it under ``blocks``, by name.

    Args:
        owner: of the group, for messages.
        group: with the options ``blocks``, ``heads`` and ``dims`` for all its parameters, or a mapping under
            ``blocks``; changed in place.

    Raises:
        ValueError: an option is not allowed, or a parameter cannot be cut so.
    """
    given = {key: x for key in DEFAULTS if (x := group.pop(key, None)) is not None}
    if not given:
        return
    specs = given["blocks"] if isinstance(given.get("blocks"), Mapping) and len(given) == 1 else {"": given}
    group["blocks"] = {name: spec_of(spec, owner) for name, spec in specs.items()}
    names = group.get("param_names") or [f"parameter {i}" for i in range(len(group["params"]))]
    for name, param in zip(names, group["params"], strict=True):
        if not is_lazy(param):
            parts_of(name, param.shape, group)


def spec_of(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what a parameter is, with the defaults of what is not said.

    Raises:
        ValueError: an option is unknown, or not allowed.
    """
    check_names(given, (*DEFAULTS, "why", "shape"), where)
    spec = {**DEFAULTS, **{key: plain(value) for key, value in given.items() if value is not None}}
    for key, interval in INTERVALS.items():
        value = spec[key]
        for each in value if isinstance(value, list | tuple) and value and key != "heads" else [value]:
            # of no block there is no size
            least = "[1, inf)" if each is not value and key == "blocks" else interval
            check_range(f"{where}: {key}", each, least + WHOLE)
    return {**spec, "dims": (spec["dims"],) if isinstance(spec["dims"], int) else tuple(spec["dims"])}


class PartState(MutableMapping[str, Any]):
    """The statistics of one part of a parameter under their plain names; counts of steps are the parameter's.

    Args:
        whole: statistics of the parameter.
        suffix: of the part.
    """

    def __init__(self, whole: State, suffix: str) -> None:
        self.whole, self.suffix = whole, suffix

    def _key(self, key: str) -> str:
        return key if key in COUNTS else key + self.suffix

    def __getitem__(self, key: str) -> Any:
        return self.whole[self._key(key)]

    def __setitem__(self, key: str, value: Any) -> None:
        self.whole[self._key(key)] = value

    def __delitem__(self, key: str) -> None:
        del self.whole[self._key(key)]

    def __iter__(self) -> Iterator[str]:
        return (key.removesuffix(self.suffix) for key in self.whole if key in COUNTS or key.endswith(self.suffix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def cut(entry: ParamEntry, group: Group) -> list[ParamEntry]:
    """Return an entry of a whole parameter as one entry for each of its parts."""
    parts = parts_of(entry.name, entry.param.shape, group)
    return [
        entry._replace(
            param=part.of(entry.param),
            grad=part.of(entry.grad).reshape(part.whole),
            state=PartState(entry.state, part.suffix) if part.suffix else entry.state,
            part=part,
            key=(entry.key, part.suffix),
        )
        for part in parts
    ] or [entry]


def split(entry: ParamEntry) -> list[ParamEntry]:
    """Return the blocks of an entry as entries, whose tensors are views."""
    if entry.part is None or not entry.part.num_blocks:
        return [entry]
    counts = {key: entry.state[key] for key in COUNTS if key in entry.state}
    length, blocks = (entry.part.stop - entry.part.start) // entry.part.num_blocks, []
    columns = {key: x.unbind() for key, x in entry.state.items() if key not in COUNTS}
    for i, (param, grad) in enumerate(zip(entry.param.unbind(), entry.grad.unbind(), strict=True)):
        state = {**counts, **{key: views[i] for key, views in columns.items()}}
        alone = entry.part._replace(num_blocks=0, start=entry.part.start + i * length)
        blocks.append(entry._replace(param=alone.seen(param), grad=grad, state=state, part=alone))
    return blocks


def fresh(param: Tensor, parts: Sequence[Part], new_state: Callable[[Tensor], State]) -> State:
    """Return the statistics of a parameter's parts before the first step, those of equal blocks in one tensor.

    Args:
        param: to be cut.
        parts: of it.
        new_state: block → statistics.
    """
    state: State = {}
    for part in parts:
        blocks = part.of(param.detach())
        each = blocks.unbind() if part.num_blocks else [blocks]
        states = [new_state(block.reshape(part.shape).contiguous()) for block in each]
        for key, x in states[0].items():
            state[key + part.suffix] = torch.stack([one[key] for one in states]) if part.num_blocks else x
    return state
