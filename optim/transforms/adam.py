"""Adam: the averaged gradient over the root of its averaged square."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from optim.engine.batch import Group, ParamBatch, State, Update, zeros
from optim.engine.transform import FusedTransform, Transform
from optim.transforms.learning_rate import LearningRate, learning_rate
from optim.transforms.weight_decay import DecoupledDecay

BETAS = ("[0, 1)", "[0, 1)")
FUSED_ON = ("cpu", "cuda", "mps", "xpu")


class Adam(FusedTransform):
    """The direction of Adam; a later transform scales it.

        m ← β₁ m + (1 − β₁) u,   v ← β₂ v + (1 − β₂) u²
        u = m/(1 − β₁ᵗ) / (√v/√(1 − β₂ᵗ) + eps)

    If only `DecoupledDecay` and `LearningRate` follow, torch's kernel does all in one pass over memory.

    State: m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        betas: decay of the two averages, each in [0, 1).
        eps: added to the root, at least 0.
        name: see `Transform`.

    Reference:
        Kingma and Ba 2015, "Adam", arXiv:1412.6980, algorithm 1; torch.optim.adamw.adamw with fused=True.
    """

    allowed: ClassVar = {"betas": BETAS, "eps": "[0, inf)"}
    shardable = True

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, *, name: str = "") -> None:
        super().__init__(name=name, betas=betas, eps=eps)

    def new_state(self, param: Tensor, group: Group, stacking_key: Hashable) -> State:
        """Return the averages m and v, both zero."""
        return {"exp_avg": zeros(param), "exp_avg_sq": zeros(param)}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the averaged update over the root of its averaged square."""
        u = update.value()
        (beta1, beta2), t = batch.group["betas"], batch.step
        # lerp_ instead of mul_ and add_: one pass over m
        m = batch.state["exp_avg"].lerp_(u, 1 - beta1)
        v = batch.state["exp_avg_sq"].mul_(beta2).addcmul_(u, u, value=1 - beta2)
        # m/(√v/c + eps) = c m/(√v + c eps) saves a pass over the elements
        c = (1 - beta2**t) ** 0.5
        return Update(m / v.sqrt().add_(c * batch.group["eps"]), c / (1 - beta1**t), free=True)

    def fuses(self, later: Sequence[Transform]) -> bool:
        """Return whether the learning rate follows, and at most the decay of weights before it."""
        *decays, last = later or [self]
        # the kernel decays before it moves, and reads the options under their plain names
        known = isinstance(last, LearningRate) and all(isinstance(decay, DecoupledDecay) for decay in decays)
        return known and len(decays) <= 1 and not any(transform.prefix for transform in later)

    def move(self, updates: Sequence[Tensor], batches: Sequence[ParamBatch], later: Sequence[Transform]) -> None:
        """Decay the weights if a later transform does, apply Adam's equations, and subtract lr times the result."""
        # not the option alone: Eve has a weight_decay too, which an earlier transform of its own applies
        weight_decay = batches[0].group["weight_decay"] if len(later) > 1 else 0.0
        warmup_steps = batches[0].group.get("warmup_steps", 0)
        fused: dict[tuple[int, torch.device], list[tuple[Tensor, ParamBatch]]] = defaultdict(list)
        for place, (u, batch) in enumerate(zip(updates, batches, strict=True)):
            param, layout = batch.param, batch.state["exp_avg"].stride()
            # the kernel walks through memory, which must be laid out alike
            if param.device.type in FUSED_ON and param.stride() == layout:
                same_layout = u if u.stride() == layout else torch.empty_like(param).copy_(u)
                # the kernel takes one lr for all tensors, and during warm-up the lr depends on the step; counts on the
                # device cannot be compared: each tensor then has a call of its own
                if isinstance(batch.step, Tensor):
                    alike = place if warmup_steps else 0
                else:
                    alike = min(batch.step, warmup_steps)
                fused[alike, param.device].append((same_layout, batch))
            else:
                lr = learning_rate(batch)
                param.mul_(1 - lr * weight_decay)
                self(Update(u), batch).times(lr).subtract_from(param)
        for pairs in fused.values():
            _fused_step(pairs, weight_decay)


def _fused_step(pairs: Sequence[tuple[Tensor, ParamBatch]], weight_decay: float) -> None:
    batches = [batch for _, batch in pairs]
    group, device = batches[0].group, batches[0].param.device
    lr = learning_rate(batches[0])
    # the kernel wants one count per tensor, of the steps before this one, on the tensor's device; a plain copy
    # would wait for the device
    if isinstance(batches[0].step, Tensor):
        steps = torch.stack([batch.step for batch in batches]).float().sub_(1).unbind()
        # other devices read the memory of the lr as float32
        lr = lr.float() if isinstance(lr, Tensor) and device.type != "cpu" else lr
    else:
        steps = torch.tensor([batch.step - 1.0 for batch in batches]).to(device, non_blocking=True).unbind()
    adamw(
        [batch.param for batch in batches],
        [u for u, _ in pairs],
        [batch.state["exp_avg"] for batch in batches],
        [batch.state["exp_avg_sq"] for batch in batches],
        [],
        list(steps),
        fused=True,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=lr,
        weight_decay=weight_decay,
        eps=group["eps"],
        maximize=False,  # the engine has negated the gradient
    )
