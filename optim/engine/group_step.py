"""The step of one parameter group: its batches on their way through the transforms, kernels and joint work included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from optim.engine.batch import Group, ParamBatch, ParamEntry, Update
from optim.engine.stacking import batches, write_back
from optim.engine.transform import FusedTransform, GroupTransform, SkipUpdate, Transform, applied

if TYPE_CHECKING:
    from optim.engine.chain import Chain


def step_group(optimizer: Chain, group: Group, entries: list[ParamEntry]) -> None:
    """Move the parameters of a group that take part in this step."""
    active = [transform for transform in optimizer.transforms if not transform.idle(transform.own(group))]
    for place, transform in enumerate(active):
        if isinstance(transform, GroupTransform) and transform.takes_all(transform.own(group)):
            return _step_together(optimizer, group, entries, active, place)
    # a compiler cannot look into torch's kernels, and makes one of several transforms itself
    place_of_kernel = None if torch.compiler.is_compiling() else _place_of_fused(active)
    ahead = active[:place_of_kernel]
    waiting: list[tuple[Tensor, ParamBatch]] = []
    for batch in _batches(optimizer, group, entries, active, place_of_kernel):
        update = _transformed(ahead, batch, Update(batch.grad))
        if update is None:
            write_back(batch)
        elif place_of_kernel is None:
            update.subtract_from(batch.param)
            # its memory is free, and still in the cache, for the next batch
            del update
            _finish(optimizer, batch)
        else:
            waiting.append((update.value(), batch))
            if batch.widened:
                # one launch for the whole group would need float32 copies of all statistics at once
                _move(optimizer, active[place_of_kernel:], waiting)
                waiting = []
    if waiting:
        # one launch for the whole group, as torch's fused kernels take lists of tensors
        _move(optimizer, active[place_of_kernel:], waiting)


def _step_together(
    optimizer: Chain, group: Group, entries: list[ParamEntry], active: Sequence[Transform], place: int
) -> None:
    """Step a group whose transform at ``place`` takes all updates at once, which are all in memory then."""
    together = active[place]
    assert isinstance(together, GroupTransform)
    waiting: list[tuple[Update, ParamBatch]] = []
    for batch in _batches(optimizer, group, entries, active, None):
        update = _transformed(active[:place], batch, Update(batch.grad))
        if update is None:
            write_back(batch)
        else:
            waiting.append((update, batch))
    updates = together.of_group([update for update, _ in waiting], [together.view(batch) for _, batch in waiting])
    for joint, (_, batch) in zip(updates, waiting, strict=True):
        update = _transformed(active[place + 1 :], batch, joint)
        if update is None:
            write_back(batch)
        else:
            update.subtract_from(batch.param)
            _finish(optimizer, batch)


def _batches(
    optimizer: Chain,
    group: Group,
    entries: list[ParamEntry],
    active: Sequence[Transform],
    place_of_kernel: int | None,
) -> Iterator[ParamBatch]:
    # a kernel that is the only call of the step takes small tensors as they are: stacks would cost copies
    first = active[0] if place_of_kernel == 0 else None
    stack_small = not isinstance(first, FusedTransform) or first.stack_small
    # a stack has one step count, and those on the device cannot be compared; shards differ between processes, which
    # must reduce in one order
    alone = optimizer.capturable or any(entry.shard for entry in entries) or not all(x.stacks for x in active)
    for batch in batches(group, entries, stack_small=stack_small and not alone):
        if optimizer.limited is not None:
            batch.limited = []
            optimizer.limited.append((group, batch.limited))
        yield batch


def _place_of_fused(active: Sequence[Transform]) -> int | None:
    """Return which transform moves the parameters by itself, and does the work of all later ones; None if none does."""
    for place, transform in enumerate(active):
        if isinstance(transform, FusedTransform) and transform.fuses(active[place + 1 :]):
            return place
    return None


def _transformed(transforms: Sequence[Transform], batch: ParamBatch, update: Update) -> Update | None:
    """Return what the transforms make of a batch's update; None if one of them skips it."""
    try:
        return applied(transforms, update, batch)
    except SkipUpdate:
        return None


def _move(optimizer: Chain, transforms: Sequence[Transform], waiting: Sequence[tuple[Tensor, ParamBatch]]) -> None:
    fused, *later = transforms
    assert isinstance(fused, FusedTransform)
    fused.move([update for update, _ in waiting], [fused.view(batch) for _, batch in waiting], later)
    for _, batch in waiting:
        _finish(optimizer, batch)


def _finish(optimizer: Chain, batch: ParamBatch) -> None:
    for transform in optimizer.transforms:
        if transform.acts_after_step:
            transform.after_step(transform.view(batch))
    write_back(batch)
