"""Parameters made ready for a step: large ones alone, small ones of equal shape stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from optim.batch import HALF, Batch, Group, Member

# Below this size a step is spent on calls, not on arithmetic: 340 of a Zipformer's 569 tensors, a hundredth of its
# elements. Above it the copies into a stack would cost more than the calls. A GPU pays more for a call.
STACK_BELOW_NUMEL = {"cpu": 4096}
STACK_BELOW_NUMEL_ELSEWHERE = 1 << 20
STACK_NUMEL = 1 << 18  # elements of a stack on a CPU, for its cache
# statistics that belong to the loop, not to a transform
LOOP_STATE = ("step", "rounding_error")


class Ready:
    """A batch on loan: `close` writes what the step changed back to where the parameters and statistics live."""

    __slots__ = ("batch", "members")

    def __init__(self, batch: Batch, members: Sequence[Member]) -> None:
        self.batch = batch
        self.members = members

    def close(self) -> None:
        """Write back; nothing to do for a single float32 or float64 parameter, which was changed in place."""
        if self.batch.stacked:
            for key, value in self.batch.state.items():
                torch.unbind_copy(value, out=[member.state[key] for member in self.members])
            if self.members[0].param.dtype not in HALF:
                torch.unbind_copy(self.batch.param, out=[member.param for member in self.members])
                return
            for member, part in zip(self.members, self.batch.param.unbind(), strict=True):
                _store(member, part)
        elif self.members[0].param.dtype in HALF:
            _store(self.members[0], self.batch.param)


def ready(group: Group, members: Sequence[Member]) -> Iterator[Ready]:
    """Yield the batches of a group, each to be closed once, and count the step of its parameters."""
    small: dict[tuple[object, ...], list[Member]] = {}
    for member in members:
        param = member.param
        if param.numel() < STACK_BELOW_NUMEL.get(param.device.type, STACK_BELOW_NUMEL_ELSEWHERE):
            key = (param.shape, param.dtype, param.device, member.state["step"], member.kind)
            small.setdefault(key, []).append(member)
        else:
            yield _single(group, member)
    for equal in small.values():
        size = max(1, STACK_NUMEL // max(1, equal[0].param.numel()))
        for start in range(0, len(equal), size):
            part = equal[start : start + size]
            yield _single(group, part[0]) if len(part) == 1 else _stack(group, part)


def _single(group: Group, member: Member) -> Ready:
    param, state = member.param, member.state
    state["step"] += 1
    if param.dtype in HALF:
        param = param.float().add_(state["rounding_error"])
    grad = member.grad if member.grad.dtype == param.dtype else member.grad.to(param.dtype)
    grad = -grad if group["maximize"] else grad
    return Ready(Batch(param, grad, state, group, state["step"], param.shape, False, member.kind), [member])


def _stack(group: Group, members: Sequence[Member]) -> Ready:
    first = members[0]
    for member in members:
        member.state["step"] += 1
    param = torch.stack([member.param for member in members])
    if param.dtype in HALF:
        param = param.float().add_(torch.stack([member.state["rounding_error"] for member in members]))
    grad = torch.stack([member.grad for member in members]).to(param.dtype)
    grad = grad.neg_() if group["maximize"] else grad
    names = [key for key in first.state if key not in LOOP_STATE]
    state = {key: torch.stack([member.state[key] for member in members]) for key in names}
    batch = Batch(param, grad, state, group, first.state["step"], first.param.shape, True, first.kind)
    return Ready(batch, members)


def _store(member: Member, value: Tensor) -> None:
    """Write a parameter back, and keep what rounding took off."""
    member.param.copy_(value)
    if member.param.dtype in HALF:
        member.state["rounding_error"].copy_(value - member.param)
