"""The step of one parameter group: its batches on their way through the transforms, kernels and joint work included."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optim.engine.param_batch import ForeachBatch, Group, Limits, ParamBatch, ParamEntry, State, Update, is_narrow
from optim.engine.stacking import StateStacks, batches
from optim.engine.transform import FusedTransform, GroupTransform, SkipUpdate, Transform, applied

Pair = tuple[Update, ParamBatch]


class GroupStep:
    """Moves the parameters of a group that take part in a step.

    Args:
        transforms: of the optimizer.
        group: hyper-parameters.
        state_stacks: the optimizer's stacks.
        states: the optimizer's state.
        limited: while `Health` measures, takes what clipping transforms note.
        found_inf: a flag on the device, see `skips_by_kernel`.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        group: Group,
        state_stacks: StateStacks,
        states: MutableMapping[Tensor, State],
        limited: Limits | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        self.transforms, self.group, self.limited, self.found_inf = transforms, group, limited, found_inf
        self.state_stacks, self.states = state_stacks, states
        self.active = [transform for transform in transforms if not transform.idle(transform.unprefixed(group))]
        self.kernel = next(
            (i for i, x in enumerate(self.active) if isinstance(x, FusedTransform) and x.fuses(self.active[i + 1 :])),
            len(self.active),
        )

    def skips_by_kernel(self, entries: list[ParamEntry]) -> bool:
        """Return whether one call makes the whole step, and itself changes nothing if ``found_inf`` is not zero."""
        kernel = self.active[0] if self.kernel == 0 and self.active else None
        return isinstance(kernel, FusedTransform) and kernel.takes_found_inf(kernel.unprefixed(self.group), entries)

    def __call__(self, entries: list[ParamEntry]) -> None:
        """Make the step; counts of steps include it already."""
        for place, transform in enumerate(self.active):
            if isinstance(transform, GroupTransform) and transform.takes_all(transform.unprefixed(self.group)):
                return self._together(entries, transform, place)
        ahead = self.active[: self.kernel]
        # a kernel moves all at the end, but for those that need wide copies of their statistics
        waits = self.kernel < len(self.active) and not is_narrow(self.group)
        waiting: list[Pair] = []
        done: list[ParamBatch] = []
        for batch in self._batches(entries, join=True):
            changed = self._changed(ahead, Update(batch.grad), batch)
            if waits and not isinstance(batch, ForeachBatch):
                waiting += changed
                done.append(batch)
                continue
            for pair in changed:
                self._subtract(*pair)
            batch.store(batch)
        kernel = self.active[self.kernel] if waits else None
        if isinstance(kernel, FusedTransform) and not kernel.one_call:
            for pair in waiting:
                self._subtract(*pair)
            waiting = []
        for alike in _alike(waiting):
            joined = ForeachBatch.of([batch for _, batch in alike])
            self._subtract(joined.join([update for update, _ in alike]), joined)
        for batch in done:
            batch.store(batch)

    def _together(self, entries: list[ParamEntry], joint: GroupTransform, place: int) -> None:
        """Make the step with a transform that takes all updates at once, which are all in memory then."""
        all_batches = list(self._batches(entries, join=False))
        changed = [(_applied(self.active[:place], Update(batch.grad), batch), batch) for batch in all_batches]
        waiting = [(update, batch) for update, batch in changed if update is not None]
        updates = joint.of_group([update for update, _ in waiting], [joint.view(batch) for _, batch in waiting])
        for update, (_, batch) in zip(updates, waiting, strict=True):
            for pair in self._changed(self.active[place + 1 : self.kernel], update, batch):
                self._subtract(*pair)
        for batch in all_batches:
            batch.store(batch)

    def _batches(self, entries: list[ParamEntry], *, join: bool) -> Iterator[ParamBatch]:
        first = self.active[0] if self.kernel == 0 and self.active else None
        # a kernel that is the only call of the step takes tensors as they are: stacks would cost copies
        fused = isinstance(first, FusedTransform) and first.one_call
        # shards differ between processes, which must reduce in one order
        alone = any(entry.shard for entry in entries) or not all(transform.stacks for transform in self.active)
        choices = {"stack": not (fused or alone), "join": join and not alone}

        def kind_of(shape: torch.Size) -> Hashable:
            """Return what tells shapes apart that cannot be in one batch."""
            return tuple(transform.kind(shape) for transform in self.transforms)

        for batch in batches(self.group, entries, self.state_stacks, self.states, kind_of, **choices):
            batch.limited, batch.found_inf = self.limited, self.found_inf
            yield batch

    def _changed(self, transforms: Sequence[Transform], update: Update, batch: ParamBatch) -> Iterator[Pair]:
        """Yield what the transforms make of an update, unless one of them skips it, and the batch that it is for."""
        if not isinstance(batch, ForeachBatch):
            result = _applied(transforms, update, batch)
            if result is not None:
                yield result, batch
            return
        rest = list(transforms)
        while rest:
            count = next((i for i, transform in enumerate(rest) if transform.foreach != rest[0].foreach), len(rest))
            run, rest = rest[:count], rest[count:]
            if run[0].foreach:
                results = [_applied(run, update, batch)]
            else:
                results = [
                    _applied(run, each, part) for each, part in zip(batch.each(update), batch.parts, strict=True)
                ]
            updates = [result for result in results if result is not None]
            if len(updates) < len(results):
                # those that are not skipped go on by themselves
                for result, part in zip(results, batch.parts, strict=False):
                    if result is not None:
                        yield from self._changed(rest, result, part)
                return
            update = updates[0] if run[0].foreach else batch.join(updates)
        yield update, batch

    def _subtract(self, update: Update, batch: ParamBatch) -> None:
        """Move the parameters by an update, or by a kernel that does the work of the last transforms."""
        if self.kernel < len(self.active):
            fused = self.active[self.kernel]
            assert isinstance(fused, FusedTransform)
            fused.move(update, fused.view(batch), self.active[self.kernel + 1 :])
        else:
            update.subtract_from(batch.param)
        for transform in self.transforms:
            if transform.acts_after_step:
                view = transform.view(batch)
                for part in [view] if transform.foreach or not isinstance(view, ForeachBatch) else view.parts:
                    transform.after_step(part)


def _alike(pairs: Sequence[Pair]) -> Iterable[list[Pair]]:
    """Return updates and their batches in lists that one call of a kernel can take."""
    pairs_of: dict[Any, list[Pair]] = defaultdict(list)
    for update, batch in pairs:
        # a call has one count of steps; equal counts on a device are one tensor, and comparing values would wait
        step = id(batch.step) if isinstance(batch.step, Tensor) else batch.step
        pairs_of[step, batch.param.dtype, batch.param.device].append((update, batch))
    return pairs_of.values()


def _applied(transforms: Sequence[Transform], update: Update, batch: ParamBatch) -> Update | None:
    """Return what the transforms make of an update; None if one of them skips the batch."""
    try:
        return applied(transforms, update, batch)
    except SkipUpdate:
        return None
