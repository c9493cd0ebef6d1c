"""Schedule-Free: an average of the iterates instead of a learning rate that decays."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from optim.engine.options import WHOLE
from optim.engine.param_batch import HALF, Group, ParamBatch, Scalar, State, Update, state_dtype, zero_per_axes
from optim.engine.transform import Transform
from optim.transforms.learning_rate import learning_rate

EVALUATING = "evaluating"
"""Whether the parameters of a group hold x; in the group's shared state."""
TRAINING_POINT = "training_point"
"""The statistic that keeps y while a parameter holds x."""


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

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return a z that equals the parameter, in its shape, and γ_max and a sum of weights of zero, (1, …)."""
        # not in the storage dtype: z is a parameter of another kind, which rounding would move
        z = param.detach().to(state_dtype(param), copy=True, memory_format=torch.preserve_format)
        state: State = {"z": z, "lr_max": zero_per_axes(param, ()), "weight_sum": zero_per_axes(param, ())}
        # a state that was saved between `eval` and `train`
        return {**state, TRAINING_POINT: torch.empty_like(param)} if self._has_moved(group) else state

    def new_shared_state(self, group: Group) -> State:
        """Return that parameters hold y."""
        return {EVALUATING: False}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Move z, let y follow the average, and return the rest of y's update."""
        y, lr, c = batch.param, learning_rate(batch), self.share_of_newest(batch)
        if batch.group["weight_decay"]:
            update = Update(update.writable().add_(y, alpha=batch.group["weight_decay"]), overwritable=True)
        # x is eliminated from the paper's three sequences: y ← (1 − c) y + c z − γ (1 − β (1 − c)) u, with the old z
        y.lerp_(batch.state["z"], c)
        update.times(lr).subtract_from(batch.state["z"])
        return update.times(lr * (1 - self.beta(batch.group) * (1 - c)))

    def share_of_newest(self, batch: ParamBatch) -> Scalar:
        """Count this step's weight, and return c."""
        group, lr_max, weight_sum = batch.group, batch.state["lr_max"], batch.state["weight_sum"]
        raised = lr_max.clamp(min=learning_rate(batch))
        former, newest = batch.read(lr_max), batch.read(raised)
        # sums in units of the newest weight: γ² of a small γ would underflow
        if isinstance(newest, Tensor):
            growth: Scalar = torch.where(newest > 0, former / newest, 1.0)
        else:
            growth = former / newest if newest > 0 else 1.0
        growth = growth ** group["weight_lr_power"] * ((batch.step - 1) / batch.step) ** group["r"]
        # only now: what `read` returns may be a view
        lr_max.copy_(raised)
        return 1 / batch.read(weight_sum.mul_(growth).add_(1))

    def eval(self, optimizer: Optimizer) -> None:
        """Put x = y + (1 − 1/β) (z − y) into every parameter that has stepped, and keep y."""
        for group in optimizer.param_groups:
            if self._has_moved(group):
                continue
            for param in group["params"]:
                if state := optimizer.state.get(param):
                    # what rounding took off a half-precision parameter belongs to its value
                    y = param.float() + state["rounding_error"] if param.dtype in HALF else param
                    x = y.lerp(state[self.prefix + "z"], 1 - 1 / self.beta(self.unprefixed(group)))
                    # a copy: computing it back from x would round
                    state[self.prefix + TRAINING_POINT] = param.detach().clone()
                    param.copy_(x)
            group["shared_state"][self.prefix + EVALUATING] = True

    def train(self, optimizer: Optimizer) -> None:
        """Put back the y that `eval` has kept."""
        for group in optimizer.param_groups:
            for param in group["params"] if self._has_moved(group) else ():
                if self.prefix + TRAINING_POINT in optimizer.state.get(param, {}):
                    param.copy_(optimizer.state[param].pop(self.prefix + TRAINING_POINT))
            group["shared_state"][self.prefix + EVALUATING] = False

    def is_evaluating(self, optimizer: Optimizer) -> bool:
        """Return whether any parameters hold x."""
        return any(map(self._has_moved, optimizer.param_groups))

    def _has_moved(self, group: Group) -> bool:
        return bool(group.get("shared_state", {}).get(self.prefix + EVALUATING, False))
