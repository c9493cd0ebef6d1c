"""Adam: the averaged gradient over the root of its averaged square."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from optim.engine.param_batch import (
    HALF,
    ForeachBatch,
    Group,
    ParamBatch,
    ParamEntry,
    Scalar,
    State,
    Update,
    zeros,
)
from optim.engine.transform import FusedTransform, Transform
from optim.transforms.adamw_kernel import has_kernel, listed, same_layout
from optim.transforms.beta2 import average_squares, beta2_correction, beta2_of
from optim.transforms.learning_rate import LearningRate, learning_rate
from optim.transforms.weight_decay import DecoupledDecay

BETAS = ("[0, 1)", "[0, 1)")


class Adam(FusedTransform):
    """The direction of Adam; a later transform scales it.

        m ← β₁ m + (1 − β₁) u,   v ← β₂ v + (1 − β₂) u²
        u = m/(1 − β₁ᵗ) / (√v/√(1 − β₂ᵗ) + eps)                                     β₂ may follow a schedule: `beta2_of`

    If only `DecoupledDecay` and `LearningRate` follow, torch's kernel does all in one pass over memory.

    State: m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        betas: decay of the two averages, each in [0, 1).
        eps: added to the root, at least 0.
        name: see `Transform`.

    Reference:
        Kingma and Ba 2015, "Adam", arXiv:1412.6980, algorithm 1; the kernel of torch.optim.AdamW(fused=True).
    """

    allowed: ClassVar = {"betas": BETAS, "eps": "[0, inf)"}
    foreach = True
    shardable = True

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, *, name: str = "") -> None:
        super().__init__(name=name, betas=betas, eps=eps)

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return the averages m and v, both zero and in the parameter's shape."""
        return {"exp_avg": zeros(param, group), "exp_avg_sq": zeros(param, group)}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the averaged update over the root of its averaged square."""
        u = update.value()
        beta1, beta2 = batch.group["betas"][0], beta2_of(batch)
        # lerp_ instead of mul_ and add_: one pass over m
        m = batch.state["exp_avg"].lerp_(u, 1 - beta1)
        v = average_squares(batch.state["exp_avg_sq"], u, beta2)
        # m/(√v/c + eps) = c m/(√v + c eps) saves a pass over the elements
        c = beta2_correction(batch) ** 0.5
        return Update(m / v.sqrt().add_(c * batch.group["eps"]), c / (1 - beta1**batch.step), overwritable=True)

    def fuses(self, later: Sequence[Transform]) -> bool:
        """Return whether the learning rate follows, and at most the decay of weights before it."""
        *decays, last = later or [self]
        # the kernel decays before it moves, and reads the options under their plain names
        known = isinstance(last, LearningRate) and all(isinstance(decay, DecoupledDecay) for decay in decays)
        return known and len(decays) <= 1 and not any(transform.prefix for transform in later)

    def takes_found_inf(self, group: Group, entries: Sequence[ParamEntry]) -> bool:
        """Return whether torch's kernel, which can skip, takes all of the parameters as they are."""
        return not group.get("palm") and all(
            entry.param.dtype not in HALF
            and entry.shard is None
            and has_kernel(entry.param.device, group["lr"])
            and same_layout(entry.param, entry.state[self.prefix + "exp_avg"])
            for entry in entries
        )

    def move(self, update: Update, batch: ParamBatch, later: Sequence[Transform]) -> None:
        """Decay the weights if a later transform does, apply Adam's equations, and subtract lr times the result."""
        # not the option alone: Eve has a weight_decay too, which an earlier transform of its own applies
        weight_decay = batch.group["weight_decay"] if len(later) > 1 else 0.0
        u, palm_on_device = update.value(), isinstance(batch.step, Tensor) and batch.group.get("palm")
        params, us, ms = (listed(x) for x in (batch.param, u, batch.state["exp_avg"]))
        known = has_kernel(batch.param.device, batch.group["lr"]) and not palm_on_device  # its decay would be a tensor
        if known and same_layout(batch.param, batch.state["exp_avg"]):
            us = [u if same_layout(u, m) else torch.empty_like(m).copy_(u) for u, m in zip(us, ms, strict=True)]
            _fused_step(params, us, ms, listed(batch.state["exp_avg_sq"]), batch, weight_decay)
        elif isinstance(batch, ForeachBatch):
            for one, part in zip(batch.each(update), batch.parts, strict=True):
                self.move(one, part, later)
        else:
            lr = learning_rate(batch)
            batch.param.mul_(1 - lr * weight_decay)
            self(Update(u), batch).times(lr).subtract_from(batch.param)


def _fused_step(
    params: list[Tensor],
    updates: list[Tensor],
    averages: list[Tensor],
    squares: list[Tensor],
    batch: ParamBatch,
    weight_decay: Scalar,
) -> None:
    device, group, steps = params[0].device, batch.group, batch.step
    lr: Any = learning_rate(batch)
    if group.get("palm"):
        # an infinite count turns off both corrections of the kernel: only that of m belongs there, as a part of lr
        correction, steps = 1 - group["betas"][0] ** batch.step, math.inf
        lr, weight_decay = lr / correction, weight_decay * correction
    # the kernel wants a count of steps on its device; a fill waits for no device, where a copy would
    if isinstance(steps, Tensor):
        count = steps.float()
        # other devices than a CPU read the memory of the rate as float32
        lr = lr.float() if isinstance(lr, Tensor) and device.type != "cpu" else lr
    else:
        count = torch.full((), float(steps), dtype=torch.float32, device=device)
    # torch.optim.adamw.adamw calls this too, but sorts the tensors again and adds 1 to the count of each
    torch._fused_adamw_(
        params,
        updates,
        averages,
        squares,
        [],
        [count] * len(params),
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=beta2_of(batch),  # type: ignore[arg-type]  # a tensor is ruled out by `move`
        # a rate on another GPU is copied as torch's own class does; one on a CPU is read
        lr=lr.to(device, non_blocking=True) if isinstance(lr, Tensor) and lr.device.type != "cpu" else lr,
        weight_decay=weight_decay,  # type: ignore[arg-type]  # a tensor is ruled out by `move`
        eps=group["eps"],
        maximize=False,  # the engine has negated the gradient
        grad_scale=None,
        found_inf=None if batch.found_inf is None else batch.found_inf.float().reshape(1),
    )
