"""Carries changed options of optimizer and schedule into the states of a checkpoint, before they are restored.

torch restores the options of groups with the statistics, and its schedules all that they hold: a resumed run would
keep what it was started with, whatever its config says now.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

NO_OPTIONS = ("params", "param_names", "shared_state")  # of a group
SCHEDULED = ("lr", "initial_lr", "betas", "momentum")  # options that a schedule may set


@dataclass(frozen=True)
class ChangedUpdates:
    """How a run makes its updates, after its config has changed.

    Attributes:
        before: named parameters → the optimizer that the checkpoint was saved with.
        after: the same for the optimizer that continues, whose parameters do not step in the backward pass.
        schedule: optimizer → the schedule that continues.
    """

    before: Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
    after: Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
    schedule: Callable[[Optimizer], LRScheduler]

    def apply_to_checkpoint(self, state: dict[str, Any], named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Give the states of a checkpoint the options of this config, and its rates at the same update.

        Args:
            state: content of a checkpoint, changed in place.
            named_parameters: parameters of the recognizer.

        Raises:
            ValueError: the optimizer has other groups of parameters.
        """
        named = small_parameters((name, param) for name, param in named_parameters if param.requires_grad)
        before, after = self.before(named), self.after(named)
        _refuse_other_groups(before, after)
        state["lr_schedulers"][0] = _state_at(self.schedule(after), state["global_step"], state["epoch"])
        saved_groups = state["optimizer_states"][0]["param_groups"]
        for saved, had, has in zip(saved_groups, before.param_groups, after.param_groups, strict=True):
            # others stay as they were saved: some optimizers keep statistics in their groups
            changed = [key for key in has if key not in NO_OPTIONS and (key in SCHEDULED or had.get(key) != has[key])]
            saved.update({key: copy.deepcopy(has[key]) for key in changed})


def small_parameters(named: Iterable[tuple[str, nn.Parameter]]) -> list[tuple[str, nn.Parameter]]:
    """Return parameters of the same names and numbers of dimensions, with at most two rows and columns."""
    return [(name, nn.Parameter(torch.ones([min(2, size) for size in param.shape]))) for name, param in named]


def _refuse_other_groups(before: Optimizer, after: Optimizer) -> None:
    """Refuse what torch would not notice: it matches parameters by their order."""
    had, have = ([group["param_names"] for group in optimizer.param_groups] for optimizer in (before, after))
    for place, (theirs, ours) in enumerate(zip(had, have, strict=False)):
        if other := sorted(set(theirs) ^ set(ours)):
            raise ValueError(f"group {place} of the optimizer has other parameters: {', '.join(other[:3])} moved")
    if len(had) != len(have):
        raise ValueError(f"the optimizer has {len(have)} groups, and had {len(had)}")


def _state_at(schedule: LRScheduler, update: int, epoch: int) -> dict[str, Any]:
    """Return the state of a new schedule after ``update`` updates; its optimizer's groups get the rates of then."""
    if hasattr(schedule, "step_epoch"):
        schedule.step_epoch(epoch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses updates of the optimizer
        for _ in range(update):
            schedule.step()
    return dict(schedule.state_dict())
