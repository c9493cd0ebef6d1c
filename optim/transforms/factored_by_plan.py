"""Second moments factored as a plan says, weighted by the optimizer's count of steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from optim.batch import Batch, Group, State, Update, zeros
from optim.factor_plan import planned
from optim.options import SWITCH, WHOLE
from optim.transform import Transform
from optim.transforms.factored import factored_direction, factored_state


class FactoredByPlan(Transform):
    """Divides by the root of a second moment, factored into rows and columns where the parameter's `Plan` says so.

    With i = 0, 1, … the optimizer's count of finished steps and t = 1, 2, … the parameter's own step:

        τ = initial_step + i + 1,  or with per_param_step  t
        w = max(1, τ − step_offset)^−decay_rate                     weight of the newest sample
        s = u² + epsilon1
        rows or columns:  r ← r + w (mean of s over columns − r),   c ← c + w (mean of s over rows − c)
                          u ← u ⊙ (r / mean of r over rows)^-½ ⊙ c^-½
        else:             v ← v + w (s − v),   u ← u v^-½

    State: r and c (``row``, ``col``), or v (``exp_avg_sq``).

    Args:
        decay_rate: at least 0.
        epsilon1: added to u².
        step_offset: see above.
        initial_step: not read with ``per_param_step``.
        per_param_step: count each parameter's own steps.
        factored: this and the following are for the optimizer, which makes plans of them.
        min_dim_size_to_factor: see `optim.factor_plan.make_plan`.
        factor_map: see `optim.factor_rules.parse_factor_map`.
        logical_factor_rules: see `optim.factor_rules.parse_logical_rules`.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, algorithm 4.
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
        super().__init__(
            name=name,
            decay_rate=decay_rate,
            epsilon1=epsilon1,
            step_offset=step_offset,
            initial_step=initial_step,
            per_param_step=per_param_step,
            factored=factored,
            min_dim_size_to_factor=min_dim_size_to_factor,
            factor_map=factor_map,
            logical_factor_rules=logical_factor_rules,
        )

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return averages of zero."""
        plan = planned(kind)
        return factored_state(param, plan.rows, plan.cols) if plan.factored else {"exp_avg_sq": zeros(param)}

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update over the root of its averaged square."""
        u, plan, eps, weight = update.value(), planned(batch.kind), batch.group["epsilon1"], _weight(batch)
        if plan.factored:
            return factored_direction(u, batch.state, plan.rows, plan.cols, weight, eps)
        return Update(batch.state["exp_avg_sq"].lerp_((u * u).add_(eps), weight).rsqrt().mul_(u), free=True)


def _weight(batch: Batch) -> float:
    group = batch.group
    step = batch.step if group["per_param_step"] else group["initial_step"] + group["shared_state"]["steps"] + 1
    return float(max(1, step - group["step_offset"]) ** -group["decay_rate"])
