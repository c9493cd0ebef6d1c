"""Moving averages and decaying sums of the updates."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from optim.engine.options import FLOAT_DTYPE, OR_NONE, SWITCH
from optim.engine.param_batch import Group, ParamBatch, State, Update, zeros
from optim.engine.transform import Transform


class Momentum(Transform):
    """Replaces the update by its moving average, without correction of the bias towards zero.

        m ← beta1 m + (1 − beta1) u,   u ← m

    If m is stored in another dtype than the update's, then beta1 and beta1 m are rounded to it too, and the new u
    leaves before m is rounded.

    State: m (``exp_avg``), unless beta1 is None.

    Args:
        beta1: decay, in [0, 1); None leaves the update unchanged.
        dtype_momentum: dtype of m, or its name; None for the dtype of the other statistics. Groups hold the name.
        name: see `Transform`.

    Reference:
        t5x.adafactor; the rounding is JAX's type promotion of a number times an array.
    """

    allowed: ClassVar = {"beta1": "[0, 1)" + OR_NONE, "dtype_momentum": FLOAT_DTYPE}
    foreach = True
    shardable = True

    def __init__(
        self, beta1: float | None = 0.9, dtype_momentum: torch.dtype | str | None = None, *, name: str = ""
    ) -> None:
        super().__init__(name=name, beta1=beta1, dtype_momentum=dtype_momentum)

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return an average of zero in the parameter's shape, or nothing without beta1."""
        if group["beta1"] is None:
            return {}
        average, dtype = zeros(param, group), group["dtype_momentum"]
        return {"exp_avg": average if dtype is None else average.to(getattr(torch, dtype))}

    def __call__(self, update: Update, batch: ParamBatch) -> Update | Tensor:
        """Return the average."""
        beta1 = batch.group["beta1"]
        if beta1 is None:
            return update
        average: Tensor = batch.state["exp_avg"]
        if average.dtype == update.direction.dtype:
            # the statistic itself leaves, not marked as overwritable: later transforms must not write to it
            return average.lerp_(update.value(), 1 - beta1)
        # torch would multiply bfloat16 by the Python number with more digits than bfloat16 has, JAX rounds it first
        decayed = average * torch.tensor(beta1, dtype=average.dtype).item()
        new = update.writable().mul_(1 - beta1).add_(decayed)
        average.copy_(new)
        return Update(new, overwritable=True)


class HeavyBallMomentum(Transform):
    """Replaces the update by a decaying sum of all updates, which is 1/(1 − β₁) times as long as an average.

        s ← β₁ s + u,   u ← s

    State: s (``momentum_buffer``).

    Args:
        betas: the first is the decay, in [0, 1); the second belongs to another transform.
        options: of a subclass, and the name; see `Transform`.

    Reference:
        torch.optim.SGD with ``momentum``.
    """

    allowed: ClassVar = {"betas": ("[0, 1)", "[0, 1)")}
    foreach = True
    shardable = True

    def __init__(self, betas: tuple[float, float] = (0.9, 0.99), **options: Any) -> None:
        super().__init__(betas=betas, **options)

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return a sum of zero in the parameter's shape."""
        return {"momentum_buffer": zeros(param, group)}

    def __call__(self, update: Update, batch: ParamBatch) -> Update | Tensor:
        """Return the sum."""
        s: Tensor = batch.state["momentum_buffer"].mul_(batch.group["betas"][0])
        # the statistic itself leaves, not marked as overwritable: later transforms must not write to it
        return update.times(-1.0).subtract_from(s)


class NesterovMomentum(HeavyBallMomentum):
    """`HeavyBallMomentum` that looks one step ahead.

        s ← β₁ s + u,   u ← u + β₁ s

    Args:
        betas: see `HeavyBallMomentum`.
        nesterov: False leaves out the second equation, so that u ← s.
        name: see `Transform`.

    Reference:
        torch.optim.SGD with ``nesterov=True``; Sutskever et al. 2013, "On the importance of initialization and momentum
        in deep learning".
    """

    allowed: ClassVar = {**HeavyBallMomentum.allowed, "nesterov": SWITCH}

    def __init__(self, betas: tuple[float, float] = (0.9, 0.99), nesterov: bool = True, *, name: str = "") -> None:
        super().__init__(betas, nesterov=nesterov, name=name)

    def __call__(self, update: Update, batch: ParamBatch) -> Update | Tensor:
        """Return the sum, a step ahead."""
        s: Any = super().__call__(update, batch)
        if not batch.group["nesterov"]:
            return s
        return Update(torch.add(update.value(), s, alpha=batch.group["betas"][0]), overwritable=True)
