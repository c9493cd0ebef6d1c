"""The learning rate, and weight decay, which follows it."""

from __future__ import annotations

from typing import ClassVar

from optim.engine.options import OR_NONE, SWITCH, WHOLE
from optim.engine.param_batch import Group, ParamBatch, Scalar, Update, at_most
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


class DecoupledDecay(Transform):
    """Shrinks the parameter by a fraction that follows lr.

        p ← p (1 − lr · weight_decay)

    Args:
        weight_decay: at least 0.
        name: see `Transform`.

    Reference:
        Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101, algorithm 2.
    """

    allowed: ClassVar = {"weight_decay": "[0, inf)"}
    foreach = True
    shardable = True

    def __init__(self, weight_decay: float = 0.01, *, name: str = "") -> None:
        super().__init__(name=name, weight_decay=weight_decay)

    def is_noop(self, group: Group) -> bool:
        """Return whether there is nothing to take off, or `CautiousDecay` does it."""
        # a factor of 1 would still cost a pass over the elements
        return bool(group["weight_decay"] == 0 or group.get("cautious_weight_decay", False))

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Shrink the parameters."""
        batch.param.mul_(1 - learning_rate(batch) * batch.group["weight_decay"])
        return update


class CautiousDecay(Transform):
    """Shrinks the elements of a parameter that the update does not move away from zero; `DecoupledDecay` rests then.

        p ← p (1 − lr · weight_decay · [u p ≥ 0])

    Args:
        weight_decay: at least 0; the option of `DecoupledDecay`.
        cautious_weight_decay: False leaves the decay to `DecoupledDecay`.
        name: see `Transform`.

    Reference:
        Chen et al. 2025, "Cautious Weight Decay", arXiv:2510.12402, algorithm 1.
    """

    allowed: ClassVar = {"weight_decay": "[0, inf)", "cautious_weight_decay": SWITCH}
    foreach = True
    shardable = True

    def __init__(self, weight_decay: float = 0.01, cautious_weight_decay: bool = True, *, name: str = "") -> None:
        super().__init__(name=name, weight_decay=weight_decay, cautious_weight_decay=cautious_weight_decay)

    def is_noop(self, group: Group) -> bool:
        """Return whether there is nothing to take off, or `DecoupledDecay` does it."""
        return bool(group["weight_decay"] == 0 or not group["cautious_weight_decay"])

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Shrink the parameters."""
        agrees = (update.value() * batch.param >= 0).to(batch.param.dtype)
        batch.param.mul_(1 - learning_rate(batch) * batch.group["weight_decay"] * agrees)
        return update


class AbsoluteDecay(Transform):
    """Shrinks the parameter by a fixed fraction, or by one that follows a power of lr.

        p ← p (1 − weight_decay_rate),  or with weight_decay_rate_lr_exponent
        p ← p (1 − weight_decay_rate · lr^weight_decay_rate_lr_exponent)                     a rate of None counts as 1

    Args:
        weight_decay_rate: None for no decay.
        weight_decay_rate_lr_exponent: None or 0 for a fixed fraction.
        name: see `Transform`.
    """

    allowed: ClassVar = {
        "weight_decay_rate": "[0, inf)" + OR_NONE,
        "weight_decay_rate_lr_exponent": "(-inf, inf)" + OR_NONE,
    }
    foreach = True
    shardable = True

    def __init__(
        self,
        weight_decay_rate: float | None = None,
        weight_decay_rate_lr_exponent: float | None = None,
        *,
        name: str = "",
    ) -> None:
        options = {"weight_decay_rate": weight_decay_rate}
        super().__init__(name=name, **options, weight_decay_rate_lr_exponent=weight_decay_rate_lr_exponent)

    def check(self, group: Group) -> None:
        """Refuse a rate of zero with an exponent."""
        # T5X tests `rate or 1`, so its 0 means 1: neither meaning is safe to guess
        if group["weight_decay_rate"] == 0 and group["weight_decay_rate_lr_exponent"]:
            raise ValueError(
                f"weight_decay_rate=0 with weight_decay_rate_lr_exponent={group['weight_decay_rate_lr_exponent']} "
                "could mean no decay, or decay by a power of lr alone; set the exponent to None for the first, the "
                "rate to None or 1 for the second"
            )

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Shrink the parameters."""
        rate, exponent = batch.group["weight_decay_rate"], batch.group["weight_decay_rate_lr_exponent"]
        if exponent:
            batch.param.mul_(1 - (1.0 if rate is None else rate) * batch.group["lr"] ** exponent)
        elif rate:
            batch.param.mul_(1 - rate)
        return update
