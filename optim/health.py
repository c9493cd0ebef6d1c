"""Measures for runs that go wrong: how far the parameters of each group move, and what limits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from optim.combined import Combined
from optim.engine.chain import Chain
from optim.engine.options import WHOLE, check_range
from optim.engine.param_batch import Group, state_dtype


class Health:
    """Measures every n-th step of any torch optimizer, from outside: the steps themselves do not change.

    A measured step costs a copy of the parameters and one read from the device; the other steps only count. Nothing is
    saved in checkpoints, and a copy of the optimizer is not measured.

    It reports for each group, labeled by its ``name`` or else its number, over all its elements:

    - ``health/GROUP/param_rms`` before the step, ``update_rms`` of what the step changed, ``grad_rms``;
    - ``update_ratio``: update_rms / param_rms; a change of exactly zero is a ratio of 0;
    - ``effective_lr``: update_rms / grad_rms, the lr that plain gradient descent would have needed to move as far;
    - ``largest_update_ratio`` of one parameter, and if names are known ``largest/NAME``, the same number again;
    - ``clipped_share``: the share of parameters that the optimizer's own clipping limited, among those that it checked;
      only for a `Chain` that clips, alone or in a `Combined`.

    A parameter without gradient counts as one whose gradient is zero. Values that are not finite are reported as such.

    Args:
        optimizer: to be measured until `remove` is called.
        every: measure one step in ``every``, at least 1.
        num_steps: steps already made, if a run resumes.

    Raises:
        ValueError: a number is out of range.

    Examples:
        >>> param = nn.Parameter(torch.ones(2))
        >>> optimizer = optim.AdamW([param], lr=0.01, weight_decay=0.0)
        >>> health = optim.Health(optimizer, every=1)
        >>> param.grad = torch.ones(2)
        >>> optimizer.step()
        >>> f"{health.take()['health/0/update_ratio']:.3f}"
        '0.010'
    """

    def __init__(self, optimizer: Optimizer, every: int = 50, num_steps: int = 0) -> None:
        check_range("every", every, "[1, inf)" + WHOLE)
        check_range("num_steps", num_steps, "[0, inf)" + WHOLE)
        self.every, self.num_steps = every, num_steps
        members = optimizer.optimizers if isinstance(optimizer, Combined) else [optimizer]
        self.chains = [member for member in members if isinstance(member, Chain)]
        self.before: list[list[Tensor]] | None = None
        self.numbers: dict[str, float] = {}
        # hooks and not a wrapper: the trainer and its checkpoints keep the optimizer itself
        self.hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def take(self) -> dict[str, float]:
        """Return the numbers of the last measured step, once; empty if none was measured since the last call."""
        numbers, self.numbers = self.numbers, {}
        return numbers

    def remove(self) -> None:
        """Stop measuring."""
        for hook in self.hooks:
            hook.remove()
        self._forget()

    def _forget(self) -> None:
        self.before = None
        for chain in self.chains:
            chain.limited = None

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # if a closure raised in the last step, `_after_step` was not called
        self._forget()
        self.num_steps += 1
        if self.num_steps % self.every:
            return
        self.before = [[param.clone() for param in group["params"]] for group in optimizer.param_groups]
        for chain in self.chains:
            chain.limited = []

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.before is None:
            return
        # everything stays on the device until `_read`, so that the step is waited for once
        groups, tensors = optimizer.param_groups, []
        noted = [pair for chain in self.chains for pair in chain.limited or ()]
        limits = [
            [limit for owner, limits_of_group in noted if owner is group for limit in limits_of_group]
            for group in groups
        ]
        for group, before, limits_of_group in zip(groups, self.before, limits, strict=True):
            tensors += [_norms(param, old) for param, old in zip(group["params"], before, strict=True)]
            tensors += [
                torch.as_tensor(factor < 1).reshape(-1).expand(len(entries)) for factor, entries in limits_of_group
            ]
        self._forget()
        values = iter(_read(tensors))
        self.numbers = {}
        labels = [str(group.get("name", place)) for place, group in enumerate(groups)]
        if len(set(labels)) < len(labels):  # numbers, which two groups never share
            labels = [str(place) for place in range(len(groups))]
        for label, group, limits_of_group in zip(labels, groups, limits, strict=True):
            report = _report(group, [next(values) for _ in group["params"]])
            limited: dict[int, float] = {}
            for _, entries in limits_of_group:
                for entry, flag in zip(entries, next(values), strict=True):
                    # limited twice is limited once
                    limited[id(entry)] = max(flag, limited.get(id(entry), 0.0))
            if limited:
                report["clipped_share"] = sum(limited.values()) / len(limited)
            self.numbers |= {f"health/{label}/{name}": value for name, value in report.items()}


def _norms(param: Tensor, old: Tensor) -> Tensor:
    """Return the norms of a parameter's change, of what it was, and of its gradient."""
    # in float32: the difference of two bfloat16 numbers, and the squares of float16 ones, lose too much
    dtype, grad = state_dtype(param), param.grad
    if grad is None:
        grad = param.new_zeros(())
    elif grad.is_sparse:  # values of one index add up, so the norm needs them coalesced
        grad = grad.coalesce().values()
    change = param.to(dtype) - old.to(dtype)
    return torch.stack([torch.linalg.vector_norm(x, dtype=dtype) for x in (change, old, grad)])


def _read(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Return the elements of each tensor; waits for the device once."""
    if not tensors:
        return []
    values = iter(torch.cat([x.to(tensors[0].device) for x in tensors]).tolist())
    return [list(islice(values, x.numel())) for x in tensors]


def _report(group: Group, rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the numbers of a group, given the three norms of each of its parameters."""
    # hypot of many norms, unlike a sum of squares, does not overflow
    root = math.sqrt(max(1, sum(param.numel() for param in group["params"])))
    update, param, grad = (math.hypot(*(row[i] for row in rows)) / root for i in range(3))
    ratios = [_ratio(row[0], row[1]) for row in rows]
    report = {
        "update_ratio": _ratio(update, param),
        "effective_lr": _ratio(update, grad),
        "update_rms": update,
        "param_rms": param,
        "grad_rms": grad,
    }
    if ratios:
        # a NaN compares as neither larger nor smaller: look for it first
        place = max(range(len(ratios)), key=lambda i: (math.isnan(ratios[i]), ratios[i]))
        report["largest_update_ratio"] = ratios[place]
        if "param_names" in group:
            report[f"largest/{group['param_names'][place]}"] = ratios[place]
    return report


def _ratio(change: float, size: float) -> float:
    if change == 0:
        return 0.0  # also of a parameter of zeros
    return change / size if size != 0 else change * math.inf
