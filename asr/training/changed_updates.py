"""Puts changed options of optimizer and schedule into the states of a checkpoint, before they are restored.

torch restores the options of groups with the statistics, and its schedules all that they hold: a resumed run would
keep what it was started with, whatever its config says now.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from asr.console import PlainConsole
from asr.processes import is_first_process

SET_BY_SCHEDULES = ("lr", "initial_lr", "betas", "momentum")

console = PlainConsole(quiet=not is_first_process())


def apply_to_checkpoint(
    state: dict[str, Any],
    changed: Collection[str],
    optimizer: Optimizer,
    schedule_factory: Callable[[Optimizer], LRScheduler],
) -> LRScheduler:
    """Set the options and learning rates in a checkpoint's states to the current ones, at the same update.

    Args:
        state: content of a checkpoint, changed in place.
        changed: names of options; others stay as they were saved, because some optimizers keep statistics in groups.
        optimizer: new, with the current options.
        schedule_factory: optimizer → schedule.

    Returns:
        The new schedule.

    Raises:
        ValueError: the optimizer has other groups of parameters.
    """
    groups = state["optimizer_states"][0]["param_groups"]
    _refuse_other_groups(groups, optimizer.param_groups)
    options = [{*group} - {*changed, *SET_BY_SCHEDULES} for group in optimizer.param_groups]
    schedule = schedule_factory(optimizer)
    _advance(schedule, state["global_step"], state["epoch"])
    state["lr_schedulers"][0] = dict(schedule.state_dict())
    for saved, new, unchanged in zip(groups, optimizer.param_groups, options, strict=True):
        # some schedules add options of their own
        saved.update({key: copy.deepcopy(new[key]) for key in new if key not in unchanged})
    return schedule


def small_parameters(named: Iterable[tuple[str, nn.Parameter]]) -> list[tuple[str, nn.Parameter]]:
    """Return parameters of the same names and numbers of dimensions, with at most two rows and columns."""
    return [
        (name, nn.Parameter(torch.ones([min(2, size) for size in param.shape]), param.requires_grad))
        for name, param in named
    ]


def _refuse_other_groups(saved: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what torch would not notice: it matches parameters by their order."""
    for place, (saved_group, new_group) in enumerate(zip(saved, new, strict=False)):
        if other := sorted(set(saved_group["param_names"]) ^ set(new_group["param_names"])):
            raise ValueError(f"group {place} of the optimizer has other parameters: {', '.join(other[:3])} moved")
    if len(saved) != len(new):
        raise ValueError(f"the optimizer has {len(new)} groups, but had {len(saved)}")


def _advance(schedule: LRScheduler, update: int, epoch: int) -> None:
    """Bring a new schedule, and the groups of its optimizer, to where they are after ``update`` updates."""
    if hasattr(schedule, "step_epoch"):
        schedule.step_epoch(epoch)
    if hasattr(schedule, "step_batch"):  # a closed form, as all of ours are
        schedule.step_batch(update)
        return
    console.print_line(
        f"{type(schedule).__name__} is stepped through {update} updates to find its current learning rate"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses updates of the optimizer
        for _ in range(update):
            schedule.step()
