"""The learning rate."""

from __future__ import annotations

from optim.batch import Batch, Update
from optim.transform import Transform


class LearningRate(Transform):
    """Multiplies the update by the group's ``lr``."""

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return lr times the update."""
        return update.times(batch.group["lr"])
