"""Updates without the elements that the current gradient contradicts."""

from __future__ import annotations

from typing import ClassVar

from optim.engine.options import SWITCH
from optim.engine.param_batch import Group, ParamBatch, Update, at_least
from optim.engine.transform import Transform


class Caution(Transform):
    """Keeps the elements of an update whose sign is the gradient's, and scales them up for those that are left out.

        u ← u · [u g > 0] · N/max(1, number of elements with u g > 0)            over the N elements of a parameter

    g is the gradient as it came, before any clipping or correction.

    Args:
        caution: whether to leave out anything.
        name: see `Transform`.

    Reference:
        Liang et al. 2024, "Cautious Optimizers", arXiv:2411.16085, algorithm 1. Differs: the paper divides by the
        number of kept elements plus 1, in its first version, or by their share plus a small number.
    """

    allowed: ClassVar = {"caution": SWITCH}
    foreach = True
    shardable = True

    def __init__(self, caution: bool = False, *, name: str = "") -> None:
        super().__init__(name=name, caution=caution)

    def is_noop(self, group: Group) -> bool:
        """Return whether all elements are kept."""
        return not group["caution"]

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, masked and scaled."""
        u = update.value()
        kept = (u * batch.grad).gt_(0)
        share = at_least(batch.mean(kept), 1 / batch.numel)
        return Update(kept.mul_(u), 1 / share, overwritable=True)
