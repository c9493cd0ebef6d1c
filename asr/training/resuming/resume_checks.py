"""Checks the counts, options and moments of a checkpoint before a run is resumed from it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from asr.nested import leaves
from asr.training.checkpoints.content_checks import count_at, mapping_at

MAX_PER_UPDATE = 2**20  # micro-batches of an update, and of the validation after it
PARTS = ("ready", "started", "processed", "completed")
STEPS = "epoch_loop.automatic_optimization.optim_progress"
SQUARES = re.compile(r"(^|_)(sq|square_avg)(_|$)")  # in the names of statistics
POSITIONS = ("last_epoch", "batch", "epoch")  # of a schedule, as torch and as our own schedules name it


def check_resumable(state: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that Lightning would silently resume at another place, or without its moments.

    Raises:
        ValueError: names the part.
    """
    for key in ("optimizer_states", "lr_schedulers"):
        parts = state.get(key)
        if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], Mapping):
            raise ValueError(f"{key} must be a list of one mapping, and is {type(parts).__name__}")
    moments = mapping_at(state["optimizer_states"][0], "state")
    if state.get("num_moments", len(moments)) != len(moments):
        raise ValueError(
            f"the optimizer's state has {len(moments)} parameters, and was saved with {state['num_moments']}"
        )
    updates, epoch = count_at(state, "global_step"), count_at(state, "epoch")
    for key, value in leaves(mapping_at(state, "callbacks"), "callbacks"):
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{key} is not a number")
        if key.endswith("_update") and isinstance(value, int) and value > updates:
            raise ValueError(f"{key} is {value} after {updates} updates")
    loop = mapping_at(mapping_at(state, "loops"), "fit_loop")
    most = (updates + 1) * MAX_PER_UPDATE
    for key, value in leaves(loop, "loops.fit_loop"):
        if not isinstance(value, bool) and not (isinstance(value, int) and 0 <= value <= most):
            raise ValueError(f"{key} must be true, false, or a number from 0 to {most}, and is {value!r:.80}")
    _check_position(loop, updates, epoch)
    schedule = state["lr_schedulers"][0]
    for name in POSITIONS:
        if name in schedule and count_at(schedule, name) > updates:
            raise ValueError(f"lr_schedulers.0.{name} is {schedule[name]} after {updates} updates")


def _check_position(loop: Mapping[str, Any], updates: int, epoch: int) -> None:
    """Refuse counts of updates, epochs and micro-batches that contradict each other."""
    epochs, batches = mapping_at(loop, "epoch_progress"), mapping_at(loop, "epoch_loop.batch_progress")
    for progress, where in ((epochs, "epoch_progress"), (batches, "epoch_loop.batch_progress")):
        total, current = mapping_at(progress, "total"), mapping_at(progress, "current")
        for part in PARTS:
            if count_at(current, part) > count_at(total, part):
                raise ValueError(f"{where}.current.{part} is {current[part]}, more than the {total[part]} in total")
    steps = mapping_at(mapping_at(mapping_at(mapping_at(loop, STEPS), "optimizer"), "step"), "total")
    if count_at(steps, "completed") != updates:
        raise ValueError(f"{STEPS} counts {steps['completed']} updates, and global_step {updates}")
    # every epoch has at least one update, and the current one may have none yet
    if max(epoch, epochs["total"]["ready"] - 1) > updates:
        raise ValueError(f"it counts {max(epoch, epochs['total']['ready'] - 1)} epochs in {updates} updates")
    # Lightning saves the loader's state only within an epoch
    loaders = mapping_at(loop, "state_dict").get("combined_loader", [])
    done = batches["current"]["processed"]
    if not isinstance(loaders, list) or any(mapping_at({"": part}, "").get("processed") != done for part in loaders):
        raise ValueError(f"state_dict.combined_loader is {loaders!r:.80}, after {done} micro-batches of the epoch")


def check_options(saved: Mapping[str, Any], optimizer: Optimizer, schedule: LRScheduler) -> None:
    """Refuse saved options that the run's config does not have: torch would restore them, and nobody would see it.

    Args:
        saved: state of the optimizer.
        optimizer: as the config builds it.
        schedule: of the same, which may change rates, and the momentum if it cycles.

    Raises:
        ValueError: names the option.
    """
    free = {"lr", "initial_lr", "params", "param_names", "shared_state"}
    if getattr(schedule, "cycle_momentum", False):
        free |= {"betas", "momentum"}
    for place, (theirs, ours) in enumerate(zip(saved["param_groups"], optimizer.param_groups, strict=False)):
        for key in (theirs.keys() & ours.keys()) - free:
            if not _same(theirs[key], ours[key]):
                raise ValueError(
                    f"the optimizer's {key} is {theirs[key]!r:.80} in group {place}, the config says {ours[key]!r:.80}"
                )


def _same(saved: Any, built: Any) -> bool:
    if isinstance(built, list | tuple):
        return isinstance(saved, list | tuple) and len(saved) == len(built) and all(map(_same, saved, built))
    if isinstance(built, bool | str) or isinstance(saved, bool | str):
        return type(saved) is type(built) and saved == built
    return bool(saved == built)  # 0 is 0.0


def check_schedule(saved: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
    """Refuse the state of a schedule whose values have other types, or lists other lengths, than those of a new one.

    The rates that it starts from must be the same.

    Raises:
        ValueError: names the part.
    """
    for key, value in fresh.items():
        if key in saved and not _is_like(saved[key], value):
            raise ValueError(f"the schedule's {key} is {saved[key]!r:.80}, which must be like {value!r:.80}")
    rates, expected = (list(map(float, part.get("base_lrs", ()))) for part in (saved, fresh))
    if rates != expected:
        raise ValueError(f"the schedule's base_lrs are {rates!r:.80}, and the config says {expected!r:.80}")


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse restored options and moments that the optimizer cannot use; fused kernels do not check shapes themselves.

    Raises:
        ValueError: names the option or the moment.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # the one that steps in the backward pass
    # SGD without momentum has no state, and a chain of a user's own transforms may have none
    keeps_state = not isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ != "Chain"
    if keeps_state and not optimizer.state:
        raise ValueError("the optimizer's state is empty, although updates were made: moments would start from zero")
    for moments in optimizer.state.values():
        for key, value in moments.items():
            numbers = torch.as_tensor(value) if isinstance(value, torch.Tensor | int | float) else torch.zeros(())
            if numbers.is_floating_point() and not numbers.isfinite().all():
                raise ValueError(f"the optimizer's {key} must be finite, and holds numbers that are not")
            if SQUARES.search(key) and (numbers < 0).any():
                raise ValueError(f"the optimizer's {key} holds averages of squares, and some are below 0")
            # a bias correction would divide by zero
            if key == "step" and (numbers < 0).any():
                raise ValueError(f"the optimizer's step is {value!r:.80}, which must be at least 0")
    # optimizers of `optim` check their own state, which may be moments of rows and columns
    if not type(optimizer).__module__.startswith("torch.optim."):
        return
    for group in optimizer.param_groups:
        for key, default in optimizer.defaults.items():
            if not _is_like(group.get(key), default):
                raise ValueError(f"the optimizer's {key} is {group.get(key)!r:.80}, which must be like {default!r:.80}")
    for parameter, moments in optimizer.state.items():
        for key, value in moments.items():
            fits = isinstance(value, torch.Tensor) and (
                value.numel() == 1 or (value.shape == parameter.shape and value.dtype == parameter.dtype)
            )
            if not fits and not isinstance(value, int | float | None):
                raise ValueError(f"the optimizer's {key} does not fit a parameter of shape {list(parameter.shape)}")


def lay_out_anew(optimizer: Optimizer) -> None:
    """Give moments that are like a parameter its order in memory, and each its own: rounding depends on the order.

    A checkpoint may hold moments whose elements lie elsewhere, or share memory, though their values are right.
    """
    seen: set[int] = set()
    for parameter, moments in getattr(optimizer, "optimizer", optimizer).state.items():
        for key, value in moments.items():
            if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
                continue
            if value.stride() != parameter.stride() or value.untyped_storage().data_ptr() in seen:
                moments[key] = torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
            seen.add(moments[key].untyped_storage().data_ptr())


def _is_like(value: Any, default: Any) -> bool:
    """Return whether a restored value can replace the default."""
    if default is None:
        return True
    if isinstance(default, list | tuple):
        same_length = isinstance(value, list | tuple) and len(value) == len(default)
        return same_length and all(map(_is_like, value, default))
    if isinstance(default, Mapping):
        return isinstance(value, Mapping)
    if isinstance(default, bool | str):  # before int: True is an int
        return type(value) is type(default)
    if isinstance(default, int | float) or (isinstance(default, torch.Tensor) and default.numel() == 1):
        is_number = isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool)
        return is_number and (math.isfinite(value) or not math.isfinite(default))
    return type(value) is type(default)
