"""Learning rates that are a formula of the number of updates and epochs done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from optim.engine.options import check_range


def linear_warmup(batch: int, warmup_steps: float) -> float:
    """Return the factor of the update after ``batch`` others: 1/(w + 1), 2/(w + 1), …, then 1."""
    # w + 1 and not w: a first update with lr 0 would change nothing
    return min(1.0, (batch + 1) / (warmup_steps + 1))


def whole_steps(option: str, value: float, max_steps: int) -> int:
    """Return a number of updates: ``value`` itself, or, below 1, that share of ``max_steps``.

    Raises:
        ValueError: it is negative, or at least ``max_steps``.
    """
    check_range(option, value, "[0, inf)")
    steps = round(value * max_steps) if value < 1 else round(value)
    if steps >= max_steps:
        raise ValueError(
            f"{option} must be less than max_steps, given {value} and {max_steps}; shorten the warm-up or train longer"
        )
    return steps


def updates_of(value: float, max_steps: int | None) -> float:
    """Return a number of updates: ``value`` itself, or, below 1 and if ``max_steps`` is known, that share of it."""
    return value if max_steps is None or not 0 < value < 1 else max(1, round(value * max_steps))


class ClosedFormSchedule(LRScheduler, ABC):
    """Sets lr = base lr · `factor` in every group; ``step()`` after each update, not after each epoch.

    The base is the group's lr when this schedule first sees it: at construction, or at the first step after
    ``add_param_group``. The lr of the first update is set at construction. A tensor as lr is cloned once, because
    groups may share one tensor, and then filled in place.

    Args:
        optimizer: whose learning rates to set.

    Raises:
        ValueError: a group has no lr.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        for i, group in enumerate(optimizer.param_groups):
            if group.get("lr") is None:
                raise ValueError(
                    f"{type(self).__name__} sets the lr, but group {i} of {type(optimizer).__name__} has none; "
                    "give the optimizer an lr, or train without a schedule"
                )
        self.epoch = 0  # before super().__init__, which calls step and so needs a factor
        super().__init__(optimizer)

    @abstractmethod
    def factor(self, batch: int, epoch: int) -> float:
        """Return lr / base lr after ``batch`` updates, in epoch ``epoch``, both from 0."""

    @property
    def batch(self) -> int:
        """Updates done so far; -1 in a part of torch's ``SequentialLR`` that has not begun."""
        return int(self.last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return each group's learning rate at the present batch and epoch, as numbers."""
        factor = self.factor(self.batch, self.epoch)
        return [float(self._base_lr(group) * factor) for group in self.optimizer.param_groups]

    def _base_lr(self, group: dict[str, Any]) -> float:
        lr = group["lr"]
        # initial_lr as a number marks a group that this class has seen; torch's constructor stores a tensor
        if isinstance(lr, Tensor) and not isinstance(group.get("initial_lr"), float):
            group["lr"] = lr.clone()
        group["initial_lr"] = float(group.get("initial_lr", lr))
        return float(group["initial_lr"])

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the current learning rates, one number per group."""
        # the groups' own: a part of torch's SequentialLR that waits has no rate yet
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def step_batch(self, batch: int | None = None) -> None:
        """Count one update, or set the count of updates since the start of training."""
        if batch is None:
            self.step()
            return
        self.last_epoch = batch
        self._apply()

    def step_epoch(self, epoch: int | None = None) -> None:
        """Set the epoch at its start (0 in the first), or, without argument, count one at its end."""
        self.epoch = self.epoch + 1 if epoch is None else int(epoch)
        if self.batch >= 0:  # torch's SequentialLR leaves a part that waits at -1
            self._apply()

    def _apply(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            if isinstance(group["lr"], Tensor):  # in place: a captured CUDA graph reads this very tensor
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Return the base learning rates and the counts; the arguments come from the config."""
        # torch's own state_dict holds all attributes: a changed config would be ignored on resuming
        bases = [self._base_lr(group) for group in self.optimizer.param_groups]
        return {"base_lrs": bases, "epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a saved state: set the counts and the bases.

        The optimizer's own state holds the learning rates of now: construct the schedule before it is loaded, since a
        construction sets those of the first update.

        Raises:
            ValueError: the state has another number of groups than the optimizer.
        """
        groups, bases = self.optimizer.param_groups, state_dict["base_lrs"]
        if len(bases) != len(groups):
            raise ValueError(f"the schedule was saved for {len(bases)} groups, the optimizer has {len(groups)}")
        for group, base in zip(groups, bases, strict=True):
            group["initial_lr"] = float(base)
        self.epoch, self.last_epoch = state_dict["epoch"], state_dict["batch"]
