"""MARS: gradients corrected by their change since the last step."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from optim.engine.options import SWITCH
from optim.engine.param_batch import Group, ParamBatch, State, Update, zeros
from optim.engine.transform import Transform


class MarsCorrection(Transform):
    """Replaces a gradient by one of lower variance.

        c_t = g_t + mars_gamma · β₁/(1 − β₁) · (g_t − g_{t−1}),   c_1 = g_1

    The difference is that of two batches, the form that the paper calls approximate: the exact one needs the gradient
    of each batch at two points.

    State, only with ``mars``: g_{t−1} (``previous_grad``).

    Args:
        mars: whether to correct.
        mars_gamma: strength, at least 0.
        name: see `Transform`.

    Reference:
        Yuan et al. 2024, "MARS", arXiv:2411.10438, algorithm 1. The paper then clips c to norm 1 per tensor, which
        ``gradient_clipping="l2"`` does. Differs from the authors' code: it takes g_0 = 0 instead of c_1 = g_1.
    """

    allowed: ClassVar = {"mars": SWITCH, "mars_gamma": "[0, inf)"}
    foreach = True
    shardable = True

    def __init__(self, mars: bool = False, mars_gamma: float = 0.025, *, name: str = "") -> None:
        super().__init__(name=name, mars=mars, mars_gamma=mars_gamma)

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

    def is_noop(self, group: Group) -> bool:
        """Return whether gradients stay as they are."""
        return not group["mars"]

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
