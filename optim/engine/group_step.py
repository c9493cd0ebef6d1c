"""The step of one parameter group: parameters become batches, gradients become updates, and the parameters move.

Batches: on a CPU, large parameters step alone, and small ones of equal shape in stacks that stay in the cache. On other
devices launches are the cost, as are calls on a CPU if a transform makes many: all parameters of equal shape are
stacks, and all stacks of a kind are one `ForeachBatch`. The statistics of a stack live in one tensor for good.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten

from optim.engine.blocks import split
from optim.engine.param_batch import (
    DRAW_KEY,
    HALF,
    LOOP_STATE,
    ForeachBatch,
    Group,
    Limits,
    ParamBatch,
    ParamEntry,
    State,
    Update,
    is_narrow,
)
from optim.engine.random import Draw
from optim.engine.transform import FusedTransform, GroupTransform, SkipUpdate, Transform, applied

# Below this size a step on a CPU spends its time on calls, not on arithmetic: 340 of a Zipformer's 569 tensors, with
# 1 % of its elements. Above it the copies into a stack would cost more than the calls. On a GPU that is so from about
# 4 million elements on, which take as long to copy as a launch.
STACK_BELOW_NUMEL = 4096
STACK_BELOW_NUMEL_ELSEWHERE = 1 << 22
STACK_NUMEL = 1 << 18  # elements of a stack on a CPU, so that it stays in the cache
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
        self.active = [transform for transform in transforms if not transform.is_noop(transform.unprefixed(group))]
        self.many_calls = any(transform.many_calls for transform in self.active)
        self.kernel: FusedTransform | None = None
        # in order: all before the kernel, and those whose work the kernel does too
        self.before_kernel, self.fused = self.active, list[Transform]()
        for place, transform in enumerate(self.active):
            if isinstance(transform, FusedTransform) and transform.fuses(self.active[place + 1 :]):
                self.before_kernel, self.kernel, self.fused = self.active[:place], transform, self.active[place + 1 :]
                break

    def skips_by_kernel(self, entries: list[ParamEntry]) -> bool:
        """Return whether one call makes the whole step, and itself changes nothing if ``found_inf`` is not zero."""
        if self.kernel is None or self.before_kernel:
            return False
        return self.kernel.takes_found_inf(self.kernel.unprefixed(self.group), entries)

    def __call__(self, entries: list[ParamEntry], *, divides: bool = True) -> None:
        """Make the step; counts of steps include it already.

        Args:
            entries: the parameters.
            divides: False if other processes step other parameters, so that there is nothing to divide.
        """
        for place, transform in enumerate(self.active if divides else ()):
            if isinstance(transform, GroupTransform) and transform.takes_all(transform.unprefixed(self.group)):
                return self._step_jointly(entries, transform, place)
        # one call of the kernel moves all at the end, but for those that need wide copies of their statistics
        defers = self.kernel is not None and not is_narrow(self.group)
        deferred: list[Pair] = []
        not_stored: list[ParamBatch] = []
        for batch in self._batches(entries, join=True):
            pairs = self._transformed(self.before_kernel, Update(batch.grad), batch)
            if defers and not isinstance(batch, ForeachBatch):
                deferred += pairs
                not_stored.append(batch)
            else:
                self._move(pairs)
                batch.store(batch)
        self._move(self._group_compatible(deferred))
        for batch in not_stored:
            batch.store(batch)

    def _step_jointly(self, entries: list[ParamEntry], joint: GroupTransform, place: int) -> None:
        """Make the step with a transform that takes all updates at once, which are all in memory then."""
        batches = list(self._batches(entries, join=self.many_calls))
        results = [(_applied(self.active[:place], Update(batch.grad), batch), batch) for batch in batches]
        pairs = [(update, batch) for update, batch in results if update is not None]
        updates = joint.of_group([update for update, _ in pairs], [joint.view(batch) for _, batch in pairs])
        for update, (_, batch) in zip(updates, pairs, strict=True):
            self._move(self._transformed(self.before_kernel[place + 1 :], update, batch))
        for batch in batches:
            batch.store(batch)

    # phase 1: parameters become batches

    def _batches(self, entries: list[ParamEntry], *, join: bool) -> Iterator[ParamBatch]:
        """Yield the batches of a group, one after the other: on a CPU, memory that one has left is still in the cache.

        Args:
            entries: whose counts of steps include this one.
            join: whether stacks may be one `ForeachBatch`; on a CPU they are only if nothing is stacked.
        """
        # a kernel that is the only call of the step takes tensors as they are: stacks would cost copies
        one_call = self.kernel is not None and not self.before_kernel and self.kernel.one_call
        # shards differ between processes, which must reduce in one order
        alone = any(entry.shard for entry in entries) or not all(transform.stacks for transform in self.active)
        stack = not (one_call or alone)
        # statistics are bfloat16 by an option that wants wider arithmetic; the first entry's are like all others'
        first = entries[0].state.items() if entries and "storage_dtype" in self.group else ()
        widen = any(isinstance(x, Tensor) and x.dtype == torch.bfloat16 for key, x in first if key not in LOOP_STATE)
        for stacks in self._stacks_by_kind(entries, stack=stack or widen):
            batches: Iterable[ParamBatch] = (self._batch_of_stack(members, widen=widen) for members in stacks)
            # float32 copies of all statistics at once would take the memory that bfloat16 saves
            if join and not (alone or widen) and (self._calls_cost(stacks[0]) or not stack):
                batches = [self._foreach_batch(stacks)]
            for batch in batches:
                batch.limited, batch.found_inf = self.limited, self.found_inf
                yield batch

    def _stacks_by_kind(self, entries: Sequence[ParamEntry], *, stack: bool) -> list[list[list[ParamEntry]]]:
        """Return the stacks of each kind: what can be one `ForeachBatch`."""
        shapes: dict[Any, list[ParamEntry]] = defaultdict(list)
        places = {}
        for place, entry in enumerate(entries):
            places[id(entry)] = place
            param, count = entry.param, entry.state["step"]
            # a batch has one count of steps: bias corrections are Python numbers; equal counts on a device are one
            # tensor
            step = id(count) if isinstance(count, Tensor) else count
            shape = entry.shape if stack else None
            shapes[shape, param.dtype, param.device, step, entry.shard is None].append(entry)
        kinds: dict[Any, list[list[ParamEntry]]] = defaultdict(list)
        for (shape, *like), members in shapes.items():
            size = _stack_size(members, calls_cost=self._calls_cost(members)) if stack else 1
            if size <= 1:
                # blocks are alone where parameters of their shape would be
                alone = [split(member) for member in members]
                places |= {id(x): places[id(member)] for member, xs in zip(members, alone, strict=True) for x in xs}
                members = [x for xs in alone for x in xs]
            key = (tuple(each.kind(shape) for each in self.transforms), frozenset(members[0].state)) if stack else ()
            kinds[(*like, *key)] += _stacks_of(members, size)
        # those alone first, in the order of the group, which is that of their memory
        return [sorted(kind, key=lambda members: (len(members) > 1, places[id(members[0])])) for kind in kinds.values()]

    def _calls_cost(self, members: Sequence[ParamEntry]) -> bool:
        return self.many_calls or launches_cost(members[0].param.device)

    def _foreach_batch(self, stacks: list[list[ParamEntry]]) -> ParamBatch:
        """Return stacks of a kind as one batch."""
        # what has no multiple of 16 bytes comes last: kernels read tensors behind it more slowly
        stacks = sorted(stacks, key=lambda members: sum(member.param.numel() for member in members) % 4 > 0)
        moved = [members for members in stacks if _is_moved(members)]
        scratch = Scratch(moved, maximize=self.group["maximize"]) if moved else None
        places = iter(zip(scratch.params, scratch.grads, strict=True)) if scratch else iter(())
        pairs = [next(places) if _is_moved(members) else self._param_and_grad(members[0]) for members in stacks]
        states = [
            members[0].state if len(members) == 1 else self.state_stacks.state_of(members, self.states)
            for members in stacks
        ]
        state = {name: [each[name] for each in states] for name in states[0] if name not in LOOP_STATE}
        stacks = [[x for member in members for x in split(member)] for members in stacks]
        batch = ForeachBatch(stacks, [param for param, _ in pairs], [grad for _, grad in pairs], state, self.group)
        if scratch:
            batch.store = scratch.write_back
        return batch

    def _batch_of_stack(self, members: list[ParamEntry], *, widen: bool) -> ParamBatch:
        """Return one stack, or one parameter."""
        first, entries = members[0], [x for member in members for x in split(member)]
        stacked, copied = len(entries) > 1, _is_moved(members)
        group, step = self.group, first.state["step"]
        shape = first.shape
        groups = tuple(place.group for place in first.shard.places) if first.shard else ()
        if not (copied or widen):
            param, grad = self._param_and_grad(first)
            return ParamBatch(param, grad, first.state, group, step, shape, stacked, entries, shard_groups=groups)
        scratch = Scratch([members], maximize=group["maximize"]) if copied else None
        param, grad = (scratch.params[0], scratch.grads[0]) if scratch else self._param_and_grad(first)
        stored = self.state_stacks.state_of(members, self.states) if len(members) > 1 else first.state
        state = {name: x for name, x in stored.items() if name not in LOOP_STATE}
        if widen:
            state = {name: x.to(param.dtype) if x.dtype == torch.bfloat16 else x for name, x in state.items()}
        batch = ParamBatch(param, grad, state, group, step, shape, stacked, entries, shard_groups=groups)

        # not a closure over the batch: such a circle would keep the memory until Python looks for circles
        def store(batch: ParamBatch) -> None:
            if scratch:
                scratch.write_back(batch)
            for name, value in state.items() if widen else ():
                if value.dtype != stored[name].dtype:
                    stored[name].copy_(rounded(value, name, batch))

        batch.store = store
        return batch

    def _param_and_grad(self, entry: ParamEntry) -> tuple[Tensor, Tensor]:
        """Return a parameter itself, and its gradient in its dtype."""
        param, grad = entry.param, entry.grad
        # `to` would return the same tensor, but a call costs more than this comparison
        grad = grad if grad.dtype == param.dtype else grad.to(param.dtype)
        return param, -grad if self.group["maximize"] else grad  # not in place: the gradient belongs to the user

    # phase 2: gradients become updates

    def _transformed(self, transforms: Sequence[Transform], update: Update, batch: ParamBatch) -> Iterator[Pair]:
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
                # parts that are not skipped are batches of their own from here
                for result, part in zip(results, batch.parts, strict=False):
                    if result is not None:
                        yield from self._transformed(rest, result, part)
                return
            update = updates[0] if run[0].foreach else batch.join(updates)
        yield update, batch

    # phase 3: parameters move

    def _group_compatible(self, deferred: Sequence[Pair]) -> Iterable[Pair]:
        """Yield deferred updates and their batches, joined to what one call of the kernel can take."""
        if self.kernel is None or not self.kernel.one_call:
            yield from deferred
            return
        compatible: dict[Any, list[Pair]] = defaultdict(list)
        for update, batch in deferred:
            # a call has one count of steps; equal counts on a device are one tensor, and comparing values would wait
            step = id(batch.step) if isinstance(batch.step, Tensor) else batch.step
            compatible[step, batch.param.dtype, batch.param.device].append((update, batch))
        for pairs in compatible.values():
            joined = ForeachBatch.of([batch for _, batch in pairs])
            yield joined.join([update for update, _ in pairs]), joined

    def _move(self, pairs: Iterable[Pair]) -> None:
        """Subtract updates from their parameters, or call the kernel, which does the work of the last transforms."""
        for update, batch in pairs:
            if self.kernel is None:
                update.subtract_from(batch.param)
            else:
                self.kernel.move(update, self.kernel.view(batch), self.fused)
            for transform in self.transforms:
                if transform.acts_after_step:
                    view = transform.view(batch)
                    for part in [view] if transform.foreach else view.parts:
                        transform.after_step(part)


def _applied(transforms: Sequence[Transform], update: Update, batch: ParamBatch) -> Update | None:
    """Return what the transforms make of an update; None if one of them skips the batch."""
    try:
        return applied(transforms, update, batch)
    except SkipUpdate:
        return None


def _stack_size(members: Sequence[ParamEntry], *, calls_cost: bool) -> int:
    """Return how many parameters or blocks of one shape are a stack."""
    numel = members[0].shape.numel()
    if members[0].shard is not None:
        return 1
    if calls_cost:
        return sum(member.num_members for member in members) if numel < STACK_BELOW_NUMEL_ELSEWHERE else 1
    return STACK_NUMEL // max(1, numel) if numel < STACK_BELOW_NUMEL else 1


def _stacks_of(members: Iterable[ParamEntry], size: int) -> list[list[ParamEntry]]:
    """Return entries in stacks of ``size`` parameters or blocks; those of one parameter are in one stack."""
    stacks, room = list[list[ParamEntry]](), 0
    for member in members:
        if member.num_members > room:
            stacks.append([])
            room = size
        stacks[-1].append(member)
        room -= member.num_members
    return stacks


def _is_moved(members: Sequence[ParamEntry]) -> bool:
    """Return whether a stack, or one parameter, is stepped in other memory."""
    param, is_part = members[0].param, members[0].part is not None
    return len(members) > 1 or param.dtype in HALF or (is_part and not param.is_contiguous())


def launches_cost(device: torch.device) -> bool:
    """Return whether a call costs more on a device than the arithmetic of most parameters."""
    return device.type != "cpu"


class Scratch:
    """The parameters and gradients of stacks during one step, one after the other in memory.

    Args:
        stacks: the members of each; a single parameter in half precision is one too.
    """

    def __init__(self, stacks: Sequence[Sequence[ParamEntry]], *, maximize: bool) -> None:
        self.entries = [entry for stack in stacks for entry in stack]
        params = [entry.param for entry in self.entries]
        dtype = torch.float32 if params[0].dtype in HALF else params[0].dtype
        self.flat = flatten(params).to(dtype)
        if params[0].dtype in HALF:
            # what rounding took off in the last step
            self.flat.add_(flatten([entry.state["rounding_error"] for entry in self.entries]))
        grads = flatten([entry.grad for entry in self.entries]).to(dtype)
        grads = grads.neg_() if maximize else grads
        counts = [sum(entry.num_members for entry in stack) for stack in stacks]
        shapes = [
            (count, *stack[0].shape) if count > 1 else stack[0].shape
            for count, stack in zip(counts, stacks, strict=True)
        ]
        sizes = [sum(entry.param.numel() for entry in stack) for stack in stacks]
        self.params, self.grads = (
            [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
            for flat in (self.flat, grads)
        )

    def write_back(self, _: ParamBatch) -> None:
        """Put the parameters back in their places."""
        params = [entry.param for entry in self.entries]
        rounded_flat = self.flat.to(params[0].dtype)
        torch._foreach_copy_(params, unflatten(rounded_flat, params))
        if params[0].dtype in HALF:
            # Kahan summation: bfloat16 has a spacing of 2⁻⁷ above 1; updates below half of it would otherwise be lost
            error = (self.flat - rounded_flat).to(params[0].dtype)
            errors = [entry.state["rounding_error"] for entry in self.entries]
            torch._foreach_copy_(errors, unflatten(error, errors))


class StateStack(NamedTuple):
    """The statistics of a stack.

    Attributes:
        keys: its members, in order.
        state: (N, *) by name.
        views: what the members' states hold, name by name and member by member.
    """

    keys: list[Any]
    state: State
    views: list[Tensor]


class StateStacks(dict[Any, StateStack]):
    """The stacks of an optimizer, by their members.

    ``optimizer.state`` stays the place of all statistics, which users may replace or clear: a stack counts only as long
    as it is what all of its members' states hold.
    """

    def state_of(self, entries: Sequence[ParamEntry], states: MutableMapping[Tensor, State]) -> State:
        """Return the statistics (N, *) of N stacked parameters; what they hold now is copied to a new stack if needed.

        Args:
            entries: the members.
            states: of all parameters, ``optimizer.state``.
        """
        names = [key for key in entries[0].state if key not in ("step", DRAW_KEY)]
        held = [entry.state.get(name) for name in names for entry in entries]
        stack = self.get(entries[0].key)
        if stack and len(held) == len(stack.views) and all(map(is_, held, stack.views)):
            return stack.state
        self._detach_others(entries, states)
        counts = [entry.num_members for entry in entries]
        state, views = dict[str, Tensor](), list[Tensor]()
        for name in names:
            column = zip(counts, (entry.state[name] for entry in entries), strict=True)
            state[name] = torch.cat([x if n > 1 else x[None] for n, x in column])
            views += [x if n > 1 else x[0] for n, x in zip(counts, state[name].split(counts), strict=True)]
        for place, view in enumerate(views):
            entries[place % len(entries)].state[names[place // len(entries)]] = view
        new = StateStack([entry.key for entry in entries], state, views)
        self.update(dict.fromkeys(new.keys, new))
        return state

    def _detach_others(self, entries: Iterable[ParamEntry], states: MutableMapping[Tensor, State]) -> None:
        """Clone the statistics of the parameters that stay behind: a view would keep the whole old stack in memory."""
        leaving = {entry.key for entry in entries}
        for old in {id(old): old for key in leaving if (old := self.get(key))}.values():
            view_ids = {id(view) for view in old.views}
            for key in old.keys:
                param = key[0] if isinstance(key, tuple) else key
                if key not in leaving and param in states:
                    state = states[param]
                    state.update({name: x.clone() for name, x in state.items() if id(x) in view_ids})
                self.pop(key)


def rounded(value: Tensor, name: str, batch: ParamBatch) -> Tensor:
    """Return a statistic of a batch, (*) or (N, *), in bfloat16, rounded stochastically."""
    keys = batch.draw_keys
    draw = Draw(batch.group["seed"], batch.step, f"round {name}", keys, value.device)
    flat = value.float().reshape(len(keys), -1)
    # a bfloat16 is the upper half of a float32: a random lower half, added, carries over with the right probability
    bits = draw.bits16(flat.shape[1]).to(torch.int32).bitwise_and_(0xFFFF).add_(flat.view(torch.int32))
    # a NaN whose lower half is full, as GPUs make them, would become zero
    bits = torch.where(flat.isnan(), flat.view(torch.int32), bits)
    return bits.bitwise_right_shift_(16).to(torch.int16).view(torch.bfloat16).reshape(value.shape)
