"""Groups parameters into batches for a step: large ones alone, small ones of equal shape stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from optim.engine.batch import HALF, Group, ParamBatch, ParamEntry
from optim.engine.storage import rounded, widened

# Below this size a step spends its time on calls, not on arithmetic: 340 of a Zipformer's 569 tensors, with 1 % of its
# elements. Above it the copies into a stack would cost more than the calls. A call costs more on a GPU.
STACK_BELOW_NUMEL = {"cpu": 4096}
STACK_BELOW_NUMEL_ELSEWHERE = 1 << 20
STACK_NUMEL = 1 << 18  # elements of a stack on a CPU, so that it stays in the cache
# statistics that belong to the step loop, not to a transform
LOOP_STATE = ("step", "rounding_error")


def batches(group: Group, entries: Sequence[ParamEntry], *, stack_small: bool = True) -> Iterator[ParamBatch]:
    """Yield the batches of a group and count their steps; give each to `write_back` once after its step."""
    # statistics are bfloat16 by an option that wants wider arithmetic; the first entry's are like all others'
    first = entries[0].state.items() if entries and "storage_dtype" in group else ()
    widen = any(isinstance(x, Tensor) and x.dtype == torch.bfloat16 for key, x in first if key not in LOOP_STATE)
    # rounding makes calls of its own, even if a kernel takes all parameters together
    stack_small = stack_small or widen
    small: dict[tuple[object, ...], list[ParamEntry]] = {}
    for entry in entries:
        param = entry.param
        if stack_small and param.numel() < STACK_BELOW_NUMEL.get(param.device.type, STACK_BELOW_NUMEL_ELSEWHERE):
            # one batch has one step count, since bias corrections are Python numbers
            key = (param.shape, param.dtype, param.device, entry.state["step"], entry.stacking_key)
            small.setdefault(key, []).append(entry)
        else:
            yield _single(group, entry, widen)
    for equal in small.values():
        size = max(1, STACK_NUMEL // max(1, equal[0].param.numel()))
        for start in range(0, len(equal), size):
            part = equal[start : start + size]
            yield _single(group, part[0], widen) if len(part) == 1 else _stack(group, part, widen)


def _single(group: Group, entry: ParamEntry, widen: bool) -> ParamBatch:
    param, state, key = entry.param, entry.state, entry.stacking_key
    state["step"] += 1
    if param.dtype in HALF:
        # add back what rounding took off in the last step
        param = param.float().add_(state["rounding_error"])
    # `to` would return the same tensor, but a call costs more than this comparison
    grad = entry.grad if entry.grad.dtype == param.dtype else entry.grad.to(param.dtype)
    grad = -grad if group["maximize"] else grad  # not in place: the gradient belongs to the user
    step, (shape, groups) = state["step"], entry.shard or (param.shape, ())
    if widen:
        state = widened({key: state[key] for key in state if key not in LOOP_STATE}, param)
    return ParamBatch(param, grad, state, group, step, shape, False, key, [entry], shard_groups=groups, widened=widen)


def _stack(group: Group, entries: Sequence[ParamEntry], widen: bool) -> ParamBatch:
    first = entries[0]
    for entry in entries:
        entry.state["step"] += 1
    param = torch.stack([entry.param for entry in entries])
    if param.dtype in HALF:
        param = param.float().add_(torch.stack([entry.state["rounding_error"] for entry in entries]))
    grad = torch.stack([entry.grad for entry in entries]).to(param.dtype)
    grad = grad.neg_() if group["maximize"] else grad  # in place: the stack is a copy
    names = [key for key in first.state if key not in LOOP_STATE]
    state = {key: torch.stack([entry.state[key] for entry in entries]) for key in names}
    state = widened(state, param) if widen else state
    step, shape, key = first.state["step"], first.param.shape, first.stacking_key
    return ParamBatch(param, grad, state, group, step, shape, True, key, entries, widened=widen)


def write_back(batch: ParamBatch) -> None:
    """Store what a step changed; a single float32 or float64 parameter was changed in place already."""
    entries, half = batch.entries, batch.entries[0].param.dtype in HALF
    stored = entries[0].state
    if batch.widened:
        for key, value in batch.state.items():
            if value.dtype != stored[key].dtype:
                batch.state[key] = rounded(value, key, batch)
                if not batch.stacked:
                    stored[key].copy_(batch.state[key])
    if batch.stacked:
        # unbind_copy with out= copies all slices in one call, where copy_ needs one call per tensor
        for key, value in batch.state.items():
            torch.unbind_copy(value, out=[entry.state[key] for entry in entries])
        if not half:
            torch.unbind_copy(batch.param, out=[entry.param for entry in entries])
    if half:
        values = batch.param.unbind() if batch.stacked else [batch.param]
        for entry, value in zip(entries, values, strict=True):
            entry.param.copy_(value)
            # Kahan summation: bfloat16 has a spacing of 2⁻⁷ above 1; updates below half of it would otherwise be lost
            entry.state["rounding_error"].copy_(value - entry.param)
