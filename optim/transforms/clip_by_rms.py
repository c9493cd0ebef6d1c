"""Updates scaled down where their RMS is above a threshold."""

from __future__ import annotations

from typing import ClassVar

from optim.batch import Batch, Update, at_least
from optim.transform import Transform


class ClipByRms(Transform):
    """Scales an update down to an RMS; one number per parameter.

        u ← u / max(1, rms(u)/clip_threshold)

    Args:
        clip_threshold: above 0.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 6.
    """

    allowed: ClassVar = {"clip_threshold": "(0, inf)"}

    def __init__(self, clip_threshold: float = 1.0, *, name: str = "") -> None:
        super().__init__(name=name, clip_threshold=clip_threshold)

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update, limited."""
        factor = 1 / at_least(batch.rms_of(update) / batch.group["clip_threshold"], 1.0)
        batch.note_limit(factor)
        return update.times(factor)
