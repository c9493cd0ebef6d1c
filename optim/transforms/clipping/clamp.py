"""A bound of the parameters themselves."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from optim.engine.options import check_range
from optim.engine.param_batch import Group, ParamBatch, Update
from optim.engine.transform import Transform


class Clamp(Transform):
    """Clamps parameters to ±limit after the step.

    Args:
        limit: largest magnitude of an element.
        option: name of the limit in the groups.
        interval: what the limit may be, as in `optim.engine.options.check_range`.
        every: clamp at the first step and at every n-th after it; in between the limit may be exceeded.
        scalars_only: leave parameters of more than one element alone.
        name: see `Transform`.
    """

    acts_after_step: ClassVar = True
    foreach = True

    def __init__(
        self,
        limit: float,
        option: str = "param_max",
        interval: str = "(0, inf)",
        *,
        every: int = 1,
        scalars_only: bool = False,
        name: str = "",
    ) -> None:
        super().__init__(name=name, **{option: limit})
        self.option, self.interval, self.every, self.scalars_only = option, interval, every, scalars_only

    def check(self, group: Group) -> None:
        """Refuse a limit outside its interval."""
        # not in `allowed`, which belongs to the class: optimizers name the option as their references do
        check_range(self.option, group[self.option], self.interval)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update unchanged."""
        return update

    def kind(self, shape: torch.Size) -> Hashable:
        """Return whether parameters may be left alone."""
        return self.scalars_only and shape.numel() == 1

    def after_step(self, batch: ParamBatch) -> None:
        """Clamp the parameters if it is due."""
        # after the step: the parameter that the next forward pass reads is the one that must be bounded
        if self.scalars_only and not batch.single_element:
            return
        limit, due = batch.group[self.option], (batch.step - 1) % self.every == 0
        if isinstance(due, Tensor):
            limit = torch.where(due, limit, torch.inf)
        elif not due:
            return
        batch.param.clamp_(-limit, limit)
