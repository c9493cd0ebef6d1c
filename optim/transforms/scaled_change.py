"""Adam's direction in units of the size of the tensor, with momentum on the parameter's change."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Group, Scalar, State, Update, at_least, constant, zeros
from optim.transform import Transform

CORRECTED_BELOW = 0.99
"""Where 1 − β₂ᵗ is less, the averaged square is corrected for having begun at zero."""
SMALLEST_RATE = 1e-100  # below it 1/rate could overflow


class ScaledChange(Transform):
    """Makes of a gradient the averaged change of the parameter; must come after a `TensorSize`.

    At the parameter's own step t = 1, 2, …, of N elements, with the size r that `TensorSize` keeps:

        v ← β₂ v + (1 − β₂) u²,   c = 1 − β₂ᵗ where that is below 0.99, else 1
        a = max(r, param_min_rms)      scalar_lr_scale where N = 1
        δ ← β₁ δ − (1 − β₁) lr · a · u/(√v/√c + eps)
        u ← −δ

    State: v (``exp_avg_sq``) and δ (``delta``).

    Args:
        betas: decay of δ and of v, each in [0, 1).
        eps: added to the root, at least 0.
        param_min_rms: floor of the size, at least 0.
        scalar_lr_scale: what a parameter of one element has in place of a size, at least 0.
        name: see `Transform`.
    """

    allowed: ClassVar = {
        "betas": ("[0, 1)", "[0, 1)"),
        "eps": "[0, inf)",
        "param_min_rms": "[0, inf)",
        "scalar_lr_scale": "[0, inf)",
    }

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        param_min_rms: float = 1e-5,
        scalar_lr_scale: float = 0.1,
        *,
        name: str = "",
    ) -> None:
        super().__init__(name=name, betas=betas, eps=eps, param_min_rms=param_min_rms, scalar_lr_scale=scalar_lr_scale)

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return an average and a change of zero."""
        return {"exp_avg_sq": zeros(param), "delta": zeros(param)}

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the negative change, for updates are subtracted."""
        u, rate = update.value(), _rate(batch)
        if isinstance(rate, float) and rate > SMALLEST_RATE and _suits_kernel(u, batch):
            _fused(u, rate, batch)
        else:
            _plain(u, rate, batch)
        return Update(batch.state["delta"], -1.0)


def _rate(batch: Batch) -> Scalar:
    """Return (1 − β₁) lr · a."""
    group = batch.group
    size = (
        at_least(batch.read(batch.state["param_rms"]), group["param_min_rms"])
        if batch.numel > 1
        else group["scalar_lr_scale"]
    )
    rate: Scalar = size * (group["lr"] * (1 - group["betas"][0]))
    return rate


def _plain(u: Tensor, rate: Scalar, batch: Batch) -> None:
    (beta1, beta2), c = batch.group["betas"], _correction(batch)
    v = batch.state["exp_avg_sq"].mul_(beta2).addcmul_(u, u, value=1 - beta2)
    # u/(√v/√c + eps) = √c u/(√v + √c eps) saves a pass over the elements
    direction = torch.div(u, v.sqrt().add_(c**0.5 * batch.group["eps"]))
    Update(direction, rate * c**0.5).subtract_from(batch.state["delta"].mul_(beta1))


def _correction(batch: Batch) -> float:
    c = 1 - float(batch.group["betas"][1]) ** batch.step
    return c if c < CORRECTED_BELOW else 1.0


def _suits_kernel(u: Tensor, batch: Batch) -> bool:
    """Return whether the kernel may walk through memory: on other devices its rate would have to be a number too."""
    return u.device.type == "cpu" and u.stride() == batch.state["delta"].stride() == batch.state["exp_avg_sq"].stride()


def _fused(u: Tensor, rate: float, batch: Batch) -> None:
    """Do the same in one pass over memory, by the kernel of torch's AdamW.

    To the kernel δ is a parameter, which its decay multiplies by β₁ and its step, without momentum, moves by the rest.
    `torch.optim.adamw.adamw` would call it too, but takes as long for that as the kernel does for most tensors.
    """
    beta1, beta2 = batch.group["betas"]
    count = float(batch.step) if _correction(batch) < 1 else float("inf")
    torch._fused_adamw_(
        [batch.state["delta"]],
        [u],
        [torch.zeros_like(u)],
        [batch.state["exp_avg_sq"]],
        [],
        [constant(count, u)],
        amsgrad=False,
        beta1=0.0,
        beta2=beta2,
        lr=rate,
        weight_decay=(1 - beta1) / rate,
        eps=batch.group["eps"],
        maximize=False,
        grad_scale=None,
        found_inf=None,
    )
