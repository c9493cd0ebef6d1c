"""Updates scaled down, slice by slice, where their RMS is above a threshold."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from optim.batch import Batch, Update, at_least
from optim.factor_plan import planned
from optim.options import OR_NONE
from optim.transform import Transform
from optim.transforms.slices import slice_rms, times_slices


class ClipSlices(Transform):
    """Scales every slice of an update down to an RMS; slices are what the parameter's `Plan` does not average over.

        u ← u / max(1, rms(u)/clipping_threshold)

    Args:
        clipping_threshold: above 0; None for no limit.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 6.
    """

    allowed: ClassVar = {"clipping_threshold": "(0, inf)" + OR_NONE}

    def __init__(self, clipping_threshold: float | None = 1.0, *, name: str = "") -> None:
        super().__init__(name=name, clipping_threshold=clipping_threshold)

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update, limited."""
        threshold = batch.group["clipping_threshold"]
        if threshold is None:
            return update
        whole = planned(batch.kind).averaged is None
        rms = batch.rms_of(update) if whole else slice_rms(update.value(), batch)
        factor = 1 / at_least(rms / threshold, 1.0)
        # a parameter counts as limited where any of its slices is
        batch.note_limit(factor if whole or not isinstance(factor, Tensor) else batch.minimum(factor))
        return times_slices(update, factor, batch)
