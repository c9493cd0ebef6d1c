"""Which parameters step as one: groups them into batches, whose statistics live in one tensor per stack for good.

On a CPU, large parameters step alone, and small ones of equal shape in stacks that stay in the cache. On other devices
launches are the cost: all parameters of equal shape are stacks, and all stacks of a kind are one `ForeachBatch`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optim.engine.param_batch import DRAW_KEY, HALF, LOOP_STATE, ForeachBatch, Group, ParamBatch, ParamEntry, State
from optim.engine.storage import rounded, widened
from optim.engine.tensor_list import flattened, unflattened

# Below this size a step on a CPU spends its time on calls, not on arithmetic: 340 of a Zipformer's 569 tensors, with
# 1 % of its elements. Above it the copies into a stack would cost more than the calls. On a GPU that is so from about
# 4 million elements on, which take as long to copy as a launch.
STACK_BELOW_NUMEL = 4096
STACK_BELOW_NUMEL_ELSEWHERE = 1 << 22
STACK_NUMEL = 1 << 18  # elements of a stack on a CPU, so that it stays in the cache


def launches_cost(device: torch.device) -> bool:
    """Return whether a call costs more on a device than the arithmetic of most parameters."""
    return device.type != "cpu"


class StateStack(NamedTuple):
    """The statistics of a stack.

    Attributes:
        params: its members, in order.
        state: (N, *) by name.
        views: what the members' states hold, name by name and member by member.
    """

    params: list[Tensor]
    state: State
    views: list[Tensor]


class StateStacks(dict[Tensor, StateStack]):
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
        stack = self.get(entries[0].param)
        if stack and len(held) == len(stack.views) and all(map(is_, held, stack.views)):
            return stack.state
        self._detach_others(entries, states)
        state = {name: torch.stack([entry.state[name] for entry in entries]) for name in names}
        views = [view for name in names for view in state[name].unbind()]
        for place, view in enumerate(views):
            entries[place % len(entries)].state[names[place // len(entries)]] = view
        new = StateStack([entry.param for entry in entries], state, views)
        self.update(dict.fromkeys(new.params, new))
        return state

    def _detach_others(self, entries: Iterable[ParamEntry], states: MutableMapping[Tensor, State]) -> None:
        """Clone the statistics of the parameters that stay behind: a view would keep the whole old stack in memory."""
        leaving = {entry.param for entry in entries}
        for old in {id(old): old for param in leaving if (old := self.get(param))}.values():
            view_ids = {id(view) for view in old.views}
            for param in old.params:
                if param not in leaving and param in states:
                    state = states[param]
                    state.update({key: x.clone() for key, x in state.items() if id(x) in view_ids})
                self.pop(param)


class Scratch:
    """The parameters and gradients of stacks during one step, one after the other in memory.

    Args:
        stacks: the members of each; a single parameter in half precision is one too.
    """

    def __init__(self, stacks: Sequence[Sequence[ParamEntry]], *, maximize: bool) -> None:
        self.entries = [entry for stack in stacks for entry in stack]
        params = [entry.param for entry in self.entries]
        dtype = torch.float32 if params[0].dtype in HALF else params[0].dtype
        self.flat = flattened(params).to(dtype)
        if params[0].dtype in HALF:
            # what rounding took off in the last step
            self.flat.add_(flattened([entry.state["rounding_error"] for entry in self.entries]))
        grads = flattened([entry.grad for entry in self.entries]).to(dtype)
        grads = grads.neg_() if maximize else grads
        sizes = [stack[0].param.numel() * len(stack) for stack in stacks]
        self.params, self.grads = (
            [
                part.view(len(stack), *stack[0].param.shape) if len(stack) > 1 else part.view(stack[0].param.shape)
                for part, stack in zip(flat.split(sizes), stacks, strict=True)
            ]
            for flat in (self.flat, grads)
        )

    def write_back(self, _: ParamBatch) -> None:
        """Put the parameters back in their places."""
        params = [entry.param for entry in self.entries]
        rounded_flat = self.flat.to(params[0].dtype)
        torch._foreach_copy_(params, unflattened(rounded_flat, params))
        if params[0].dtype in HALF:
            # Kahan summation: bfloat16 has a spacing of 2⁻⁷ above 1; updates below half of it would otherwise be lost
            error = (self.flat - rounded_flat).to(params[0].dtype)
            torch._foreach_copy_([entry.state["rounding_error"] for entry in self.entries], unflattened(error, params))


def batches(
    group: Group,
    entries: Sequence[ParamEntry],
    state_stacks: StateStacks,
    states: MutableMapping[Tensor, State],
    kind_of: Callable[[torch.Size], Hashable],
    *,
    stack: bool,
    join: bool,
) -> Iterator[ParamBatch]:
    """Yield the batches of a group, one after the other: on a CPU, memory that one has left is still in the cache.

    Args:
        group: hyper-parameters.
        entries: whose counts of steps include this one.
        state_stacks: the optimizer's stacks.
        states: the optimizer's state.
        kind_of: what tells shapes apart that cannot be in one `ForeachBatch`; see `Transform.kind`.
        stack: whether parameters of equal shape are one batch.
        join: whether stacks may be one `ForeachBatch`; on a CPU they are only if nothing is stacked.
    """
    # statistics are bfloat16 by an option that wants wider arithmetic; the first entry's are like all others'
    first = entries[0].state.items() if entries and "storage_dtype" in group else ()
    widen = any(isinstance(x, Tensor) and x.dtype == torch.bfloat16 for key, x in first if key not in LOOP_STATE)
    for kind in _kinds(entries, kind_of, stack=stack or widen):
        device = kind[0][0].param.device
        # float32 copies of all statistics at once would take the memory that bfloat16 saves
        if join and not widen and (launches_cost(device) or not stack):
            yield _foreach_batch(group, kind, state_stacks, states)
        else:
            for members in kind:
                yield _batch_of_stack(group, members, state_stacks, states, widen=widen)


def _kinds(
    entries: Sequence[ParamEntry], kind_of: Callable[[torch.Size], Hashable], *, stack: bool
) -> list[list[list[ParamEntry]]]:
    """Return the stacks of each kind: what can be one `ForeachBatch`."""
    shapes: dict[Any, list[ParamEntry]] = defaultdict(list)
    places = {}
    for place, entry in enumerate(entries):
        places[id(entry)] = place
        param, count = entry.param, entry.state["step"]
        # a batch has one count of steps: bias corrections are Python numbers; equal counts on a device are one tensor
        step = id(count) if isinstance(count, Tensor) else count
        shape = param.shape if stack else None
        shapes[shape, param.dtype, param.device, step, entry.shard is None].append(entry)
    kinds: dict[Any, list[list[ParamEntry]]] = defaultdict(list)
    for (shape, *like), members in shapes.items():
        first = members[0]
        size, numel = 1, first.param.numel()
        if not stack:
            kinds[tuple(like)] += [[member] for member in members]
            continue
        if launches_cost(first.param.device):
            size = len(members) if numel < STACK_BELOW_NUMEL_ELSEWHERE else 1
        elif numel < STACK_BELOW_NUMEL:
            size = max(1, STACK_NUMEL // max(1, numel))
        size = size if first.shard is None else 1
        kind = kinds[(*like, kind_of(shape), frozenset(first.state))]
        kind += [members[start : start + size] for start in range(0, len(members), size)]
    # those alone first, in the order of the group, which is that of their memory
    return [sorted(kind, key=lambda members: (len(members) > 1, places[id(members[0])])) for kind in kinds.values()]


def _foreach_batch(
    group: Group, stacks: list[list[ParamEntry]], state_stacks: StateStacks, states: MutableMapping[Tensor, State]
) -> ParamBatch:
    """Return stacks of a kind as one batch."""
    half = stacks[0][0].param.dtype in HALF
    # what has no multiple of 16 bytes comes last: kernels read tensors behind it more slowly
    stacks = sorted(stacks, key=lambda members: (len(members) * members[0].param.numel()) % 4 > 0)
    moved = [members for members in stacks if len(members) > 1 or half]
    scratch = Scratch(moved, maximize=group["maximize"]) if moved else None
    places = iter(zip(scratch.params, scratch.grads, strict=True)) if scratch else iter(())
    pairs = [
        next(places) if len(members) > 1 or half else _param_and_grad(members[0], maximize=group["maximize"])
        for members in stacks
    ]
    stack_states = [
        members[0].state if len(members) == 1 else state_stacks.state_of(members, states) for members in stacks
    ]
    names = [name for name in stack_states[0] if name not in LOOP_STATE]
    state = {name: [each[name] for each in stack_states] for name in names}
    batch = ForeachBatch(stacks, [param for param, _ in pairs], [grad for _, grad in pairs], state, group)
    if scratch:
        batch.store = scratch.write_back
    return batch


def _batch_of_stack(
    group: Group,
    members: list[ParamEntry],
    state_stacks: StateStacks,
    states: MutableMapping[Tensor, State],
    *,
    widen: bool,
) -> ParamBatch:
    """Return one stack, or one parameter."""
    first, stacked = members[0], len(members) > 1
    step = first.state["step"]
    shape, groups = first.shard or (first.param.shape, ())
    if not (stacked or widen or first.param.dtype in HALF):
        param, grad = _param_and_grad(first, maximize=group["maximize"])
        return ParamBatch(param, grad, first.state, group, step, shape, False, members, shard_groups=groups)
    scratch = Scratch([members], maximize=group["maximize"]) if stacked or first.param.dtype in HALF else None
    param, grad = (
        (scratch.params[0], scratch.grads[0]) if scratch else _param_and_grad(first, maximize=group["maximize"])
    )
    stored = state_stacks.state_of(members, states) if stacked else first.state
    state = {name: x for name, x in stored.items() if name not in LOOP_STATE}
    state = widened(state, param) if widen else state
    batch = ParamBatch(param, grad, state, group, step, shape, stacked, members, shard_groups=groups)

    # not a closure over the batch: such a circle would keep the memory until Python looks for circles
    def store(batch: ParamBatch) -> None:
        if scratch:
            scratch.write_back(batch)
        for name, value in state.items() if widen else ():
            if value.dtype != stored[name].dtype:
                stored[name].copy_(rounded(value, name, batch))

    batch.store = store
    return batch


def _param_and_grad(entry: ParamEntry, *, maximize: bool) -> tuple[Tensor, Tensor]:
    """Return a parameter itself, and its gradient in its dtype."""
    param, grad = entry.param, entry.grad
    # `to` would return the same tensor, but a call costs more than this comparison
    grad = grad if grad.dtype == param.dtype else grad.to(param.dtype)
    return param, -grad if maximize else grad  # not in place: the gradient belongs to the user
