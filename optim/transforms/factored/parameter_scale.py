"""Steps relative to the size of the parameter."""

from __future__ import annotations

from typing import Any, ClassVar

from optim.engine.options import OR_NONE
from optim.engine.param_batch import ParamBatch, Update, at_least, at_most
from optim.engine.transform import Transform
from optim.transforms.factored.plan import FACTOR_PLAN, slice_rms, times_slices


class ParameterScale(Transform):
    """Multiplies an update by the size of the parameter before the step, or of each slice if it has a `FactorPlan`.

        u ← min(max(rms(p), epsilon2), max_parameter_scale) · u

    Args:
        multiply_by_parameter_scale: False leaves the update unchanged. An optimizer whose parameters have plans may
            also take pairs of a regular expression and True or False.
        epsilon2: at least 0.
        max_parameter_scale: above 0; None for no limit.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 8.
    """

    foreach = True
    allowed: ClassVar = {"epsilon2": "[0, inf)", "max_parameter_scale": "(0, inf)" + OR_NONE}

    def __init__(
        self,
        multiply_by_parameter_scale: Any = True,
        epsilon2: float = 1e-3,
        max_parameter_scale: float | None = None,
        *,
        name: str = "",
    ) -> None:
        options = {"multiply_by_parameter_scale": multiply_by_parameter_scale, "epsilon2": epsilon2}
        super().__init__(name=name, **options, max_parameter_scale=max_parameter_scale)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update times the parameter's size."""
        group, plan = batch.group, batch.group.get(FACTOR_PLAN)
        # a plan has answered the regular expressions for this parameter; without one the option is the answer
        if not (plan.scaled if plan else group["multiply_by_parameter_scale"]):
            return update
        # the floor lets parameters that start at zero move at all
        size = at_least(slice_rms(batch.param, batch), group["epsilon2"])
        largest = group["max_parameter_scale"]
        return times_slices(update, size if largest is None else at_most(size, largest), batch)
