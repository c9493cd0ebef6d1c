"""Momentum, and what goes with it: MARS corrects gradients before it, caution masks the updates after it."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from optim.engine.options import FLOAT_DTYPE, OR_NONE, SWITCH
from optim.engine.param_batch import Group, ParamBatch, State, Update, at_least, zeros
from optim.engine.transform import Transform


class MarsCorrection(Transform):
    """Replaces a gradient by one of lower variance.

        c_t = g_t + mars_gamma · β₁/(1 − β₁) · (g_t − g_{t−1}),   c_1 = g_1

    The difference is that of two batches, the form that the paper calls approximate: the exact one needs the gradient
    of each batch at two points.

    State, only with ``mars``: g_{t−1} (``previous_grad``).

    Args:
        mars: whether to correct.
        mars_gamma: strength, at least 0. The default is that of the authors' code, github.com/AGI-Arena/MARS;
            HeavyBall's 0.0025 corrects a tenth of that.
        name: see `Transform`.

    Reference:
        Yuan et al. 2024, "MARS", arXiv:2411.10438, algorithm 1. The paper then clips c to norm 1 per tensor, which
        ``gradient_clipping="l2"`` does. Differs from the authors' code: it takes g_0 = 0 instead of c_1 = g_1.
    """

    mars: Annotated[bool, SWITCH] = False
    mars_gamma: Annotated[float, "[0, inf)"] = 0.025
    switch = "mars"
    foreach = shardable = True

    def check(self, group: Group) -> None:
        """Refuse to correct where no average of gradients follows, or one that never changes."""
        if not group["mars"]:
            return
        name, beta1 = _beta1(group)
        if beta1 is None or beta1 == 1:
            raise ValueError(f"mars=True multiplies by β₁/(1 − β₁): {name} must be a number below 1, given {beta1}")

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return a gradient of zero in the parameter's shape if there is something to correct."""
        return {"previous_grad": zeros(param, group)} if group["mars"] else {}

    def __call__(self, update: Update, batch: ParamBatch) -> Update | Tensor:
        """Return the corrected gradient."""
        gradient, previous = update.value(), batch.state["previous_grad"]
        corrected = corrected_gradient(gradient, previous, batch.group, batch.step)
        # a copy: the gradient is the user's, and the next backward pass may write to its memory
        previous.copy_(gradient)
        return corrected


def corrected_gradient(gradient: Tensor, previous: Tensor, group: Group, step: int) -> Tensor:
    """Return c of `MarsCorrection` at a step, in the shape of both gradients; the gradient itself at the first."""
    _, beta1 = _beta1(group)
    # one pass over memory: g + a (g − previous) = lerp(g, previous, −a)
    return gradient if step == 1 else gradient.lerp(previous, -group["mars_gamma"] * beta1 / (1 - beta1))


def _beta1(group: Group) -> tuple[str, Any]:
    """Return the name of the option that holds β₁, and its value."""
    if "betas" in group:
        return "betas[0]", group["betas"][0]
    name = "beta" if "beta" in group else "beta1"
    return name, group.get(name)


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

    beta1: Annotated[float | None, "[0, 1)" + OR_NONE] = 0.9
    dtype_momentum: Annotated[torch.dtype | str | None, FLOAT_DTYPE] = None
    foreach = shardable = True

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
        name: see `Transform`.

    Reference:
        torch.optim.SGD with ``momentum``.
    """

    betas: Annotated[tuple[float, float], ("[0, 1)", "[0, 1)")] = (0.9, 0.99)
    averages = ("momentum_buffer",)
    foreach = shardable = True

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

    nesterov: Annotated[bool, SWITCH] = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update | Tensor:
        """Return the sum, a step ahead."""
        s: Any = super().__call__(update, batch)
        if not batch.group["nesterov"]:
            return s
        return Update(torch.add(update.value(), s, alpha=batch.group["betas"][0]), overwritable=True)


class Caution(Transform):
    """Keeps the elements of an update whose sign is the gradient's, and scales them up for those that are left out.

        u ← u · [u g > 0] · N/max(1, number of elements with u g > 0)            over the N elements of a parameter

    g is the gradient as it came, before any clipping or correction.

    Args:
        caution: whether to leave out anything.
        name: see `Transform`.

    Reference:
        Liang et al. 2024, "Cautious Optimizers", arXiv:2411.16085, algorithm 1. Differs: the paper divides by the
        number of kept elements plus 1, in its first version, or by their share plus a small number.
    """

    caution: Annotated[bool, SWITCH] = False
    switch = "caution"
    foreach = shardable = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, masked and scaled."""
        u = update.value()
        kept = (u * batch.grad).gt_(0)
        share = at_least(batch.mean(kept), 1 / batch.numel)
        return Update(kept.mul_(u), 1 / share, overwritable=True)
