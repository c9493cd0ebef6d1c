"""Steps that a CUDA graph can replay: what changes from step to step is on the device, and nothing is decided by it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from optim.engine.batch import Group, ParamEntry, state_dtype
from optim.engine.transform import Transform, merged_shared_state

if TYPE_CHECKING:
    from optim.engine.chain import Chain


def keep_counts_on_device(group: Group) -> None:
    """Turn the group's lr and its count of steps into tensors of their own, which a captured step reads each time."""
    if not group["params"]:
        return
    first = group["params"][0]
    place = {"dtype": state_dtype(first), "device": first.device}
    if group["lr"] is not None and not _is_there(group["lr"], first):
        group["lr"] = torch.as_tensor(group["lr"], **place)
    group["shared_state"]["steps"] = torch.as_tensor(group["shared_state"]["steps"], **place).clone()


def check_capturable(optimizer: Chain, group: Group) -> None:
    """Refuse a group whose steps a CUDA graph could not replay.

    One parameter of each kind makes a step on the meta device. It has no values: what reads one, to decide by it or to
    make a Python number of it, raises there, as it would during the capture.

    Raises:
        ValueError: a transform needs numbers, or the lr is a tensor on another device.
    """
    owner, lr = type(optimizer).__name__, group["lr"]
    if isinstance(lr, Tensor) and group["params"] and not _is_there(lr, group["params"][0]):
        raise ValueError(
            f"{owner} with capturable=True needs an lr on the device of its parameters, {group['params'][0].device}, "
            f"given one on {lr.device}; a captured step would not see it change"
        )
    meta = {**group, "params": [param.to("meta") for param in group["params"]]}
    meta["lr"] = None if lr is None else torch.empty((), device="meta")
    meta["shared_state"] = {"steps": torch.empty((), device="meta"), **merged_shared_state(optimizer.transforms, meta)}
    kinds: dict[object, ParamEntry] = {}
    for name, param in zip(group.get("param_names", [""] * len(meta["params"])), meta["params"], strict=True):
        key = optimizer.stacking_key(name, param, group)
        state = optimizer._fresh_state(param, group, key)
        kinds[param.shape, param.dtype, key] = ParamEntry(param, torch.empty_like(param), state, key, name)
    entries = [entry for entry in kinds.values() if entry.param.numel() > 0]
    try:
        with torch.no_grad():
            for transform in optimizer.transforms:
                transform.before_step([(meta, entries)])
            optimizer._step_group(meta, entries)
    # which error torch and Python raise for a tensor without values differs from use to use
    except Exception as error:
        rules = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
        rule = next((type(rule).__name__ for rule in reversed(rules) if isinstance(rule, Transform)), owner)
        raise ValueError(
            f"{owner} cannot be captured: {rule} decides by numbers, such as the count of steps, that are on the "
            f"device with capturable=True ({str(error).splitlines()[0]}); leave capturable out"
        ) from error


def _is_there(lr: float | Tensor, param: Tensor) -> bool:
    return isinstance(lr, Tensor) and lr.device == param.device
