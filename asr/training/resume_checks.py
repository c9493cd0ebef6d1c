"""What a checkpoint must hold so that a run can be resumed from it: counts, options and moments that can be true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from asr.training.checkpoint_checks import count_at, mapping_at


def check_resumable(state: Mapping[str, Any]) -> None:
    """Refuse a checkpoint from which Lightning would begin again without a word, with fresh counts or moments.

    Raises:
        ValueError: names the part.
    """
    for key in ("optimizer_states", "lr_schedulers"):
        parts = state.get(key)
        if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], Mapping):
            raise ValueError(f"{key} must be a list of one mapping, and is {type(parts).__name__}")
    progress = mapping_at(mapping_at(state, "loops"), "fit_loop")
    for key in ("epoch_progress", "epoch_loop.batch_progress"):
        for part in ("total", "current"):
            for name in ("ready", "started", "processed", "completed"):
                count_at(mapping_at(mapping_at(progress, key), part), name)


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse restored options and moments that the optimizer cannot use; fused kernels would not look at their shapes.

    Raises:
        ValueError: names the option or the moment.
    """
    # plain SGD keeps nothing, and a chain of a user's own transforms may not either
    keeps_state = not isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ != "Chain"
    if keeps_state and not optimizer.state:
        raise ValueError("the optimizer's state is empty, although updates were made: its moments would begin again")
    # ours look at what they are given, and may have moments of rows and columns
    if not type(optimizer).__module__.startswith("torch.optim."):
        return
    for group in optimizer.param_groups:
        for key, default in optimizer.defaults.items():
            if default is not None and _kind(group.get(key)) != _kind(default):
                raise ValueError(f"the optimizer's {key} is {group.get(key)!r:.80}, which must be like {default!r:.80}")
    for parameter, moments in optimizer.state.items():
        for key, value in moments.items():
            fits = isinstance(value, torch.Tensor) and (
                value.numel() == 1 or (value.shape == parameter.shape and value.dtype == parameter.dtype)
            )
            if not fits and not isinstance(value, int | float | None):
                raise ValueError(f"the optimizer's {key} does not fit a parameter of shape {list(parameter.shape)}")


def _kind(option: Any) -> str:
    if isinstance(option, int | float | torch.Tensor):
        return "number"
    if isinstance(option, list | tuple):
        return f"{len(option)} of {sorted(map(_kind, option))}"
    return type(option).__name__
