"""The learning rate: a transform of its own, because where it stands in a chain makes a difference."""

from __future__ import annotations

from typing import ClassVar

from optim.engine.options import WHOLE
from optim.engine.param_batch import ParamBatch, Scalar, Update, at_most
from optim.engine.transform import Transform


class LearningRate(Transform):
    """Multiplies the update by `learning_rate`."""

    foreach = True
    shardable = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return lr times the update."""
        # before momentum, a changed lr acts with the momentum's delay; after it, at once
        return update.times(learning_rate(batch))


class WarmupLearningRate(LearningRate):
    """`LearningRate` with a linear warm-up over a parameter's own first steps.

    Args:
        warmup_steps: steps until the full rate; 0 for no warm-up.
        name: see `Transform`.
    """

    allowed: ClassVar = {"warmup_steps": "[0, inf)" + WHOLE}

    def __init__(self, warmup_steps: int = 0, *, name: str = "") -> None:
        super().__init__(name=name, warmup_steps=warmup_steps)


def learning_rate(batch: ParamBatch) -> Scalar:
    """Return the rate of this step: the group's ``lr``, times min(1, t/warmup_steps) at the parameter's step t."""
    lr: Scalar = batch.group["lr"]
    warmup_steps: int = batch.group.get("warmup_steps", 0)
    return lr * at_most(batch.step / warmup_steps, 1.0) if warmup_steps else lr
