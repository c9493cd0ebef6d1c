"""The learning rate: a transform of its own, because where it stands in a chain makes a difference."""

from __future__ import annotations

from optim.engine.batch import ParamBatch, Update
from optim.engine.transform import Transform


class LearningRate(Transform):
    """Multiplies the update by the group's ``lr``."""

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return lr times the update."""
        # before momentum, a changed lr acts with the momentum's delay; after it, at once
        return update.times(batch.group["lr"])
