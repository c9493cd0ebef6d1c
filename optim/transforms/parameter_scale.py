"""Steps relative to the size of the parameter."""

from __future__ import annotations

from typing import Any, ClassVar

from optim.batch import Batch, Update, at_least, at_most
from optim.factor_plan import planned
from optim.options import OR_NONE
from optim.transform import Transform
from optim.transforms.slices import slice_rms, times_slices


class ParameterScale(Transform):
    """Multiplies every slice of an update by the size of the same slice of the parameter, before it moves.

        u ← min(max(rms(p), epsilon2), max_parameter_scale) · u          where the parameter's `Plan` is scaled

    Args:
        multiply_by_parameter_scale: for the optimizer, which makes plans of it: True, False, or pairs of a regular
            expression and one of them.
        epsilon2: at least 0.
        max_parameter_scale: above 0; None for no limit.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 8.
    """

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

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update times the parameter's size."""
        if not planned(batch.kind).scaled:
            return update
        size = at_least(slice_rms(batch.param, batch), batch.group["epsilon2"])
        largest = batch.group["max_parameter_scale"]
        return times_slices(update, size if largest is None else at_most(size, largest), batch)
