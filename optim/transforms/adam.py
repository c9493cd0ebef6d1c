"""Adam: the averaged gradient over the root of its averaged square."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from optim.engine.batch import Group, ParamBatch, State, Update, zeros
from optim.engine.transform import FusedTransform, Transform

BETAS = ("[0, 1)", "[0, 1)")
FUSED_ON = ("cpu", "cuda", "mps", "xpu")


class Adam(Transform):
    """The direction of Adam; a later transform scales it.

        m ← β₁ m + (1 − β₁) u,   v ← β₂ v + (1 − β₂) u²
        u = m/(1 − β₁ᵗ) / (√v/√(1 − β₂ᵗ) + eps)

    State: m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        betas: decay of the two averages, each in [0, 1).
        eps: added to the root, at least 0.
        name: see `Transform`.

    Reference:
        Kingma and Ba 2015, "Adam", arXiv:1412.6980, algorithm 1.
    """

    allowed: ClassVar = {"betas": BETAS, "eps": "[0, inf)"}

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, *, name: str = "") -> None:
        super().__init__(name=name, betas=betas, eps=eps)

    def new_state(self, param: Tensor, group: Group, stacking_key: Hashable) -> State:
        """Return the averages m and v, both zero."""
        return {"exp_avg": zeros(param), "exp_avg_sq": zeros(param)}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the averaged update over the root of its averaged square."""
        return adam_direction(update.value(), batch)


def adam_direction(u: Tensor, batch: ParamBatch) -> Update:
    """Update the averages with u, and return Adam's direction."""
    (beta1, beta2), t = batch.group["betas"], batch.step
    # lerp_ instead of mul_ and add_: one pass over m
    m = batch.state["exp_avg"].lerp_(u, 1 - beta1)
    v = batch.state["exp_avg_sq"].mul_(beta2).addcmul_(u, u, value=1 - beta2)
    # m/(√v/c + eps) = c m/(√v + c eps) saves a pass over the elements
    c = (1 - beta2**t) ** 0.5
    return Update(m / v.sqrt().add_(c * batch.group["eps"]), c / (1 - beta1**t), free=True)


class FusedAdam(FusedTransform):
    """`Adam` and the step by lr in one pass over memory, by torch's own kernel.

    State and options as in `Adam`.

    Reference:
        torch.optim.adamw.adamw with fused=True.
    """

    allowed: ClassVar = Adam.allowed

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, *, name: str = "") -> None:
        super().__init__(name=name, betas=betas, eps=eps)

    def new_state(self, param: Tensor, group: Group, stacking_key: Hashable) -> State:
        """Return the averages m and v, both zero."""
        return {"exp_avg": zeros(param), "exp_avg_sq": zeros(param)}

    def move(self, updates: Sequence[Tensor], batches: Sequence[ParamBatch]) -> None:
        """Apply Adam's equations and subtract lr times the result."""
        fused = []
        for u, batch in zip(updates, batches, strict=True):
            # the kernel walks through memory, which must be laid out alike
            if batch.param.device.type in FUSED_ON and batch.param.stride() == batch.state["exp_avg"].stride():
                same_layout = u if u.stride() == batch.param.stride() else torch.empty_like(batch.param).copy_(u)
                fused.append((same_layout, batch))
            else:
                adam_direction(u, batch).times(batch.group["lr"]).subtract_from(batch.param)
        if fused:
            _fused_step(fused)


def _fused_step(pairs: Sequence[tuple[Tensor, ParamBatch]]) -> None:
    batches = [batch for _, batch in pairs]
    group, device = batches[0].group, batches[0].param.device
    # the kernel wants one count per tensor, of the steps before this one, on the tensor's device; a plain copy
    # would wait for the device
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
        lr=group["lr"],
        weight_decay=0.0,  # a transform decays, so that any rule of decay goes with the kernel
        eps=group["eps"],
        maximize=False,  # the engine has negated the gradient
    )
