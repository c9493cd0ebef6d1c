"""What only T5X's Adafactor does to an update: moments by plan and by one count of steps, and steps without NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from optim.engine.options import SWITCH, WHOLE
from optim.engine.param_batch import Group, ParamBatch, State, Update, at_least
from optim.engine.transform import Transform
from optim.transforms.factored import FACTOR_PLAN, moment_state, over_moment


class MomentsByPlan(Transform):
    """Divides by the root of a second moment, factored into rows and columns as the parameter's `FactorPlan` says.

    The equations are those of `over_moment`. With i = 0, 1, … the optimizer's count of finished steps, and
    t = 1, 2, … the parameter's own step, the weight of the newest sample is

        τ = initial_step + i + 1,  or with per_param_step  t
        w = max(1, τ − step_offset)^−decay_rate

    State: r and c (``row``, ``col``), or v (``exp_avg_sq``).

    Args:
        decay_rate: at least 0.
        epsilon1: added to g².
        step_offset: taken off τ.
        initial_step: not read with ``per_param_step``.
        per_param_step: count each parameter's own steps.
        factored: this and the following are not read here: the optimizer makes plans of them.
        min_dim_size_to_factor: see `optim.t5x_adafactor.group_rules.make_plan`.
        factor_map: see `optim.t5x_adafactor.factor_rules.parse_factor_map`.
        logical_factor_rules: see `optim.t5x_adafactor.factor_rules.parse_logical_rules`.
        name: see `Transform`.
    """

    allowed: ClassVar = {
        "decay_rate": "[0, inf)",
        "epsilon1": "[0, inf)",
        "step_offset": "[0, inf)" + WHOLE,
        "initial_step": "[0, inf)" + WHOLE,
        "per_param_step": SWITCH,
        "factored": SWITCH,
        "min_dim_size_to_factor": "[0, inf)" + WHOLE,
    }

    foreach = True

    def __init__(
        self,
        decay_rate: float = 0.8,
        epsilon1: float = 1e-30,
        step_offset: int = 0,
        initial_step: int = 0,
        per_param_step: bool = False,
        factored: bool = True,
        min_dim_size_to_factor: int = 128,
        factor_map: Any = None,
        logical_factor_rules: Mapping[str, Any] | None = None,
        *,
        name: str = "",
    ) -> None:
        weight = {"decay_rate": decay_rate, "step_offset": step_offset, "initial_step": initial_step}
        plan = {"factored": factored, "min_dim_size_to_factor": min_dim_size_to_factor, "factor_map": factor_map}
        options = {"epsilon1": epsilon1, "per_param_step": per_param_step, "logical_factor_rules": logical_factor_rules}
        super().__init__(name=name, **weight, **plan, **options)

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return averages of zero (*shape): ``exp_avg_sq``, or ``row`` with size 1 on columns and ``col`` on rows."""
        plan = group[FACTOR_PLAN]
        return moment_state(param, group, plan.rows, plan.cols)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update over the root of its averaged square."""
        group, plan = batch.group, batch.group[FACTOR_PLAN]
        # T5X counts for the whole optimizer: a parameter whose gradients begin late starts with w < 1
        step = batch.step if group["per_param_step"] else group["initial_step"] + group["shared_state"]["steps"] + 1
        weight = at_least(1.0 * step - group["step_offset"], 1.0) ** -group["decay_rate"]
        return over_moment(update.value(), batch.state, plan.rows, plan.cols, weight, group["epsilon1"])


class SkipNan(Transform):
    """Keeps the old value of every element of a parameter or statistic whose new value is NaN; must come first.

    Costs a copy of the parameter and its statistics, one parameter at a time. Nothing waits for the device.

    Args:
        skip_nan_updates: False does nothing.
        name: see `Transform`.
    """

    allowed: ClassVar = {"skip_nan_updates": SWITCH}
    acts_after_step: ClassVar = True

    def __init__(self, skip_nan_updates: bool = True, *, name: str = "") -> None:
        super().__init__(name=name, skip_nan_updates=skip_nan_updates)
        # between `__call__` and `after_step` of one batch only; not a statistic, since checkpoints must not hold it
        self.before: dict[int, list[Tensor]] = {}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Copy the parameters and statistics."""
        if batch.group["skip_nan_updates"]:
            # later transforms write in place: without a copy the old values would be lost
            self.before[id(batch.param)] = [x.clone() for x in _tensors(batch)]
        return update

    def after_step(self, batch: ParamBatch) -> None:
        """Put back what has become NaN."""
        if batch.group["skip_nan_updates"]:
            for x, old in zip(_tensors(batch), self.before.pop(id(batch.param)), strict=True):
                # where and not `if x.isnan().any()`, which would wait for the device
                x.copy_(torch.where(x.isnan(), old, x))


def _tensors(batch: ParamBatch) -> list[Tensor]:
    return [batch.param, *(x for x in batch.state.values() if isinstance(x, Tensor))]
