"""Schedule-Free: an average of the iterates instead of a learning rate that decays."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.engine.options import WHOLE
from optim.engine.param_batch import Group, ParamBatch, Scalar, State, Update, state_dtype, zero_per_axes
from optim.engine.transform import Transform
from optim.transforms.learning_rate import learning_rate


class ScheduleFree(Transform):
    """Steps with one sequence, z, and evaluates at its average, x; gradients are taken in between, at y.

    With the update u that arrives, the learning rate γ of step t, and γ_max, the largest one so far:

        z ← z − γ (u + weight_decay · y)
        c = w_t/(w_1 + … + w_t),   w_t = tʳ · γ_max^weight_lr_power
        x ← (1 − c) x + c z,   y = (1 − β) z + β x

    Parameters hold y. x is not stored, and follows from y and z: `Chain.eval` puts it into the parameters. In this form

        y ← (1 − c) y + c z − γ (1 − β (1 − c)) (u + weight_decay · y)                  with the z before the step

    Takes the place of the learning rate and of weight decay, and must be the last transform. β takes the place of
    momentum: what comes before should have none.

    State: z (``z``), γ_max (``lr_max``), and w_1 + … + w_t in units of w_t (``weight_sum``).

    Args:
        beta: share of the average in the point of the gradients, in (0, 1].
        weight_decay: at least 0.
        warmup_steps: steps over which γ rises linearly to lr, by each parameter's own count.
        r: power of the step in the weights of the average, at least 0; 0 weights all alike.
        weight_lr_power: power of γ_max in the weights of the average, at least 0: steps of the warm-up count less.
        name: see `Transform`.

    Reference:
        Defazio et al. 2024, "The Road Less Scheduled", arXiv:2405.15682, section 1 and algorithm 1; γ_max instead of γ
        as in the authors' package schedulefree 1.4.1, which is the same while the learning rate does not fall.

    Examples:
        >>> param = nn.Parameter(torch.ones(1))
        >>> optimizer = optim.chain(optim.ScheduleFree(beta=0.9), lr=0.5)([param])  # plain gradient descent, averaged
        >>> for _ in range(4):
        ...     param.grad = param.detach().clone()
        ...     optimizer.step()
        >>> optimizer.eval()
        >>> f"{param.item():.3f}"
        '0.190'
    """

    allowed: ClassVar = {
        "beta": "(0, 1]",
        "weight_decay": "[0, inf)",
        "warmup_steps": "[0, inf)" + WHOLE,
        "r": "[0, inf)",
        "weight_lr_power": "[0, inf)",
    }
    has_evaluation_point: ClassVar = True
    foreach = True
    exact_state: ClassVar = ("z",)

    def __init__(
        self,
        beta: float = 0.9,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        *,
        name: str = "",
    ) -> None:
        options = {"weight_decay": weight_decay, "warmup_steps": warmup_steps, "r": r}
        super().__init__(name=name, beta=beta, **options, weight_lr_power=weight_lr_power)

    def beta(self, group: Group) -> float:
        """Return β."""
        return float(group["beta"])

    def new_state(self, param: Tensor, group: Group, stacking_key: Hashable) -> State:
        """Return a z that equals the parameter, and no weights yet."""
        z = param.detach().to(state_dtype(param), copy=True, memory_format=torch.preserve_format)
        return {"z": z, "lr_max": zero_per_axes(param, ()), "weight_sum": zero_per_axes(param, ())}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Move z, let y follow the average, and return the rest of y's update."""
        y, lr, c = batch.param, learning_rate(batch), self.share_of_newest(batch)
        if batch.group["weight_decay"]:
            update = Update(update.writable().add_(y, alpha=batch.group["weight_decay"]), free=True)
        # x is eliminated from the paper's three sequences: y ← (1 − c) y + c z − γ (1 − β (1 − c)) u, with the old z
        y.lerp_(batch.state["z"], c)
        update.times(lr).subtract_from(batch.state["z"])
        return update.times(lr * (1 - self.beta(batch.group) * (1 - c)))

    def share_of_newest(self, batch: ParamBatch) -> Scalar:
        """Count this step's weight, and return c."""
        group, lr_max, weight_sum = batch.group, batch.state["lr_max"], batch.state["weight_sum"]
        raised = lr_max.clamp(min=learning_rate(batch))
        before, now = batch.read(lr_max), batch.read(raised)
        # sums in units of the newest weight: γ² of a small γ would underflow
        if isinstance(now, Tensor):
            growth: Scalar = torch.where(now > 0, before / now, 1.0)
        else:
            growth = before / now if now > 0 else 1.0
        growth = growth ** group["weight_lr_power"] * ((batch.step - 1) / batch.step) ** group["r"]
        # only now: what `read` returns may be a view
        lr_max.copy_(raised)
        return 1 / batch.read(weight_sum.mul_(growth).add_(1))

    def evaluation_point(self, param: Tensor, state: State, group: Group) -> Tensor:
        """Return x = y + (1 − 1/β) (z − y)."""
        return param.lerp(state["z"], 1 - 1 / self.beta(group))
