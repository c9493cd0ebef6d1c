"""Updates over their largest element, and matrices moved row by row."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Scalar, Update, at_least
from optim.options import SWITCH
from optim.transform import Transform


class RowMaximum(Transform):
    """Brings the largest element of every parameter to 1; of a matrix, moves every row by its largest element.

        u ← u/max(max|u|, eps₁),   D = max(1, rms(u)/d)
        matrices:  u ← sign(u) ⊙ max over the row of |u| / D        with max_norm
        else:      u ← u/D

    Single elements pass as they are. At d ≥ 1 the clipping by D never acts, for u is at most 1.

    Args:
        d: rms of the normalised update above which it is scaled down.
        eps: the first is the floor of the maximum; the second is another transform's.
        max_norm: move a row as one.
        quirks: leave u in place of the statistic ``exp_avg_sq`` that `MaxFactoredMoments` keeps of less than two axes.
        name: see `Transform`.
    """

    allowed: ClassVar = {"d": "(0, inf)", "eps": ("(0, inf)", "[0, inf)"), "max_norm": SWITCH, "quirks": SWITCH}

    def __init__(self, d: float, eps: tuple[float, float], max_norm: bool, quirks: bool, *, name: str = "") -> None:
        super().__init__(name=name, d=d, eps=eps, max_norm=max_norm, quirks=quirks)

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update in units of its largest element."""
        if batch.numel == 1:
            return update
        u = update.writable()
        rows = largest(u)
        factor = 1 / at_least(batch.maximum(rows), batch.group["eps"][0])
        if batch.group["quirks"] and len(batch.shape) < 2:
            batch.state["exp_avg_sq"].copy_(u * factor)
        factor = factor * self._clip(u, factor, batch)
        if len(batch.shape) >= 2 and batch.group["max_norm"]:
            return Update(u.sign_(), factor, free=True, rows=rows)
        return Update(u, factor, free=True)

    def _clip(self, u: Tensor, factor: Scalar, batch: Batch) -> Scalar:
        """Return 1/D."""
        d: float = batch.group["d"]
        if d >= 1:
            return 1.0
        limit = 1 / at_least(batch.rms_of(Update(u, factor)) / d, 1.0)
        batch.note_limit(limit)
        return limit


def largest(u: Tensor) -> Tensor:
    """Return the largest magnitude along the last axis, which stays with size 1."""
    # two passes without a temporary: quicker than abs and one
    return torch.maximum(u.amax(-1, keepdim=True), u.amin(-1, keepdim=True).neg_())
