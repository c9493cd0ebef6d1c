"""Updates scaled down where their RMS is above a threshold."""

from __future__ import annotations

from optim.engine.options import OR_NONE, check_range
from optim.engine.param_batch import Group, ParamBatch, Update, at_least
from optim.engine.transform import Transform
from optim.transforms.factored.plan import slice_axes, slice_rms, times_slices


class ClipByRms(Transform):
    """Scales an update down to an RMS: one factor per parameter, or per slice if the parameter has a `FactorPlan`.

        u ← u / max(1, rms(u)/clip_threshold)

    Args:
        clip_threshold: above 0; None for no limit.
        option: name of the threshold in the groups.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 6.
    """

    foreach = True

    def __init__(self, clip_threshold: float | None = 1.0, *, option: str = "clip_threshold", name: str = "") -> None:
        super().__init__(name=name, **{option: clip_threshold})
        self.option = option

    def check(self, group: Group) -> None:
        """Refuse a threshold that is not positive."""
        check_range(self.option, group[self.option], "(0, inf)" + OR_NONE)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, limited."""
        threshold = batch.group[self.option]
        if threshold is None:
            return update
        # divide by at least 1 instead of multiplying by min(1, threshold/rms): an update of zeros stays finite
        factor = 1 / at_least(slice_rms(update, batch) / threshold, 1.0)
        # a parameter counts as limited if any of its slices is
        whole = slice_axes(batch) is None
        batch.note_limit(factor if whole else batch.minimum(factor))  # type: ignore[arg-type]
        return times_slices(update, factor, batch)
