"""Carries changed options of optimizer and schedule into the states of a checkpoint, before they are restored.

torch restores the options of groups with the statistics, and its schedules all that they hold: a resumed run would
keep what it was started with, whatever its config says now.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Named = Sequence[tuple[str, nn.Parameter]]
NO_OPTIONS = ("params", "param_names", "shared_state")  # of a group
COUNTS = ("step", "steps")  # numbers, or tensors if a CUDA graph replays the steps; optimizers take either


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

    def carry_into(self, state: dict[str, Any], named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Give the states of a checkpoint the options of now, and the rates of now at the same update.

        Args:
            state: of a checkpoint, which has been checked; changed in place.
            named_parameters: of the recognizer.

        Raises:
            ValueError: the optimizer would hold other statistics than the saved ones, or has other groups.
        """
        named = [(name, param) for name, param in named_parameters if param.requires_grad]
        before, after = self.before(named), self.after(named)
        _refuse_other_groups(before, after)
        _refuse_other_statistics(_shared_statistics(before), _shared_statistics(after))
        _refuse_other_statistics(_trial_statistics(self.before, named), _trial_statistics(self.after, named))
        schedule = self.schedule(after)
        state["lr_schedulers"][0] = _state_at(schedule, state["lr_schedulers"][0], state["epoch"])
        saved_groups = state["optimizer_states"][0]["param_groups"]
        for saved, group in zip(saved_groups, after.param_groups, strict=False):
            saved.update({key: copy.deepcopy(value) for key, value in group.items() if key not in NO_OPTIONS})


def small_parameters(named: Iterable[tuple[str, nn.Parameter]]) -> Named:
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


def _shared_statistics(optimizer: Optimizer) -> dict[str, Any]:
    groups = [group.get("shared_state", {}) for group in optimizer.param_groups]
    return {f"group {place}": _outline(shared) for place, shared in enumerate(groups)}


def _trial_statistics(
    factory: Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer], named: Named
) -> dict[str, Any]:
    """Return what torch's own optimizers hold after a step, which they do not check when they load a state."""
    small = small_parameters(named)
    optimizer = factory(small)
    for member in getattr(optimizer, "optimizers", [optimizer]):
        if not type(member).__module__.startswith("torch.optim."):
            continue
        for group in member.param_groups:
            if "capturable" in group:
                group["capturable"] = False  # only a GPU can do it, and these parameters are on none
            for param in group["params"]:
                param.grad = torch.ones_like(param)
        member.step(lambda: 0.0)
    return {name: _outline(optimizer.state[param]) for name, param in small if param in optimizer.state}


def _outline(statistics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else type(value)
        for key, value in statistics.items()
        if key not in COUNTS
    }


def _refuse_other_statistics(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for name in sorted(before.keys() | after.keys()):
        had, have = before.get(name, {}), after.get(name, {})
        for key in sorted(had.keys() | have.keys()):
            if had.get(key) != have.get(key):
                raise ValueError(f"the optimizer would hold another {key} for {name} than the saved one")


def _state_at(schedule: LRScheduler, saved: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return the state of a new schedule after as many updates as a saved one has seen.

    The groups of the new schedule's optimizer have the rates of that update then, or get them when the state is loaded.
    """
    done = int(saved.get("batch", saved.get("last_epoch", 0)))
    fresh = schedule.state_dict()
    if "batch" in fresh:  # a formula of these counts
        return {**fresh, "batch": done, "epoch": saved.get("epoch", epoch)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses updates of the optimizer
        for _ in range(done):
            schedule.step()
    return dict(schedule.state_dict())
