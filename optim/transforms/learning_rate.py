"""The learning rate, and weight decay, which follows it."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from optim.engine.options import OR_NONE, SWITCH, WHOLE
from optim.engine.param_batch import Group, ParamBatch, Scalar, State, Update, at_least, at_most
from optim.engine.transform import OptionHolder, Transform
from optim.transforms.update_norm import TINY, is_on_sphere

ESTIMATED_LR = "estimated_lr"
"""The statistic of a group that `learning_rate` is multiplied by, if there is one."""


class LearningRate(Transform):
    """Multiplies the update by `learning_rate`."""

    foreach = shardable = True

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

    warmup_steps: Annotated[int, "[0, inf)" + WHOLE] = 0


def learning_rate(batch: ParamBatch) -> Scalar:
    """Return the rate of this step: the group's ``lr``, times min(1, t/warmup_steps) at the parameter's step t.

    A transform may estimate a factor of it, see `optim.prodigy.EstimatedDistance`.
    """
    lr = scheduled_lr(batch.group, batch.step)
    return estimate(batch, ESTIMATED_LR) * lr if ESTIMATED_LR in batch.group.get("shared_state", ()) else lr


def scheduled_lr(group: Group, step: Scalar) -> Scalar:
    """Return the group's lr at a step, with its own warm-up."""
    lr: Scalar = group["lr"]
    warmup_steps: int = group.get("warmup_steps", 0)
    return lr * at_most(step / warmup_steps, 1.0) if warmup_steps else lr


def estimate(batch: ParamBatch, key: str) -> Scalar:
    """Return a number of a group's shared state, a tensor without axes, for these parameters."""
    number: Tensor = batch.group["shared_state"][key]
    # parameters may be on another device
    return batch.read(number.to(batch.param.device, batch.param.dtype))


class CorrectedDecay(OptionHolder):
    """Holds the options of `decay_of`: AdamC's decay, which every rule with decoupled decay can have.

    State of a group, only with ``corrected_weight_decay``: the lr that it was built with (``peak_lr``).

    Args:
        corrected_weight_decay: multiply the decay by lr/peak_lr once more.
        peak_lr: the largest lr of the schedule, above 0; None for the lr that the group was built with.

    Reference:
        Defazio 2025, "Why Gradients Rapidly Increase Near the End of Training", arXiv:2506.02285, AdamC. The
        paper corrects all linear layers but the output layer, which no normalization follows: that keeps plain decay.
    """

    corrected_weight_decay: Annotated[bool, SWITCH] = False
    peak_lr: Annotated[float | None, "(0, inf)" + OR_NONE] = None

    def new_shared_state(self, group: Group) -> State:
        """Return the lr before any schedule, above 0, as a number or a tensor of one element."""
        return {"peak_lr": at_least(group["lr"], TINY)} if group["corrected_weight_decay"] else {}


def decay_of(batch: ParamBatch) -> Scalar:
    """Return the decay that lr multiplies: the group's ``weight_decay``, times lr/peak_lr if it is corrected.

    The fraction that a step takes off is then weight_decay · lr²/peak_lr: so a layer that a normalization follows keeps
    its ratio of gradient to weight, √(2 weight_decay/peak_lr), while the schedule lowers lr.
    """
    group = batch.group
    decay: Scalar = group["weight_decay"]
    if not group.get("corrected_weight_decay"):
        return decay
    return decay * (learning_rate(batch) / (group["peak_lr"] or group["shared_state"]["peak_lr"]))


def shrink(update: Update, batch: ParamBatch, fraction: Scalar) -> None:
    """Take a fraction off the parameters; with ``cautious_weight_decay`` only where the update does not oppose it.

        p ← p (1 − fraction),  or  p ← p (1 − fraction · [u p ≥ 0])

    Reference:
        Chen et al. 2025, "Cautious Weight Decay", arXiv:2510.12402, algorithm 1.
    """
    if batch.group.get("cautious_weight_decay"):
        fraction = (update.value() * batch.param >= 0).to(batch.param.dtype) * fraction
    batch.param.mul_(1 - fraction)


class DecoupledDecay(Transform):
    """Shrinks the parameter by a fraction that follows lr.

        p ← p (1 − lr · weight_decay)                                               which may be corrected: `decay_of`

    Args:
        weight_decay: at least 0.
        name: see `Transform`.

    Reference:
        Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101, algorithm 2.
    """

    weight_decay: Annotated[float, "[0, inf)"] = 0.01
    foreach = shardable = True

    def is_noop(self, group: Group) -> bool:
        """Return whether there is nothing to take off, or `CautiousDecay` does it."""
        # a factor of 1 would still cost a pass over the elements
        return bool(group["weight_decay"] == 0 or group.get("cautious_weight_decay", False))

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Shrink the parameters, unless their size is fixed."""
        if not is_on_sphere(batch):
            shrink(update, batch, learning_rate(batch) * decay_of(batch))
        return update


class CautiousDecay(DecoupledDecay):
    """Shrinks the elements of a parameter that the update does not move away from zero, see `shrink`; `DecoupledDecay`
    rests then.

    Args:
        weight_decay: at least 0; the option of `DecoupledDecay`.
        cautious_weight_decay: False leaves the decay to `DecoupledDecay`.
        name: see `Transform`.
    """

    cautious_weight_decay: Annotated[bool, SWITCH] = True

    def is_noop(self, group: Group) -> bool:
        """Return whether there is nothing to take off, or `DecoupledDecay` does it."""
        return bool(group["weight_decay"] == 0 or not group["cautious_weight_decay"])


class AbsoluteDecay(Transform):
    """Shrinks the parameter by a fixed fraction, or by one that follows a power of lr.

        p ← p (1 − weight_decay_rate),  or with weight_decay_rate_lr_exponent
        p ← p (1 − weight_decay_rate · lr^weight_decay_rate_lr_exponent)                     a rate of None counts as 1

    Args:
        weight_decay_rate: None for no decay.
        weight_decay_rate_lr_exponent: None or 0 for a fixed fraction.
        cautious_weight_decay: see `shrink`.
        name: see `Transform`.
    """

    weight_decay_rate: Annotated[float | None, "[0, inf)" + OR_NONE] = None
    weight_decay_rate_lr_exponent: Annotated[float | None, "(-inf, inf)" + OR_NONE] = None
    cautious_weight_decay: Annotated[bool, SWITCH] = False
    foreach = shardable = True

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
            shrink(update, batch, (1.0 if rate is None else rate) * batch.group["lr"] ** exponent)
        elif rate:
            shrink(update, batch, rate)
        return update
