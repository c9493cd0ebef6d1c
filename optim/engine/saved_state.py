"""Loading of optimizer state: matches parameters by name, checks before anything changes, restores the dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from optim.engine.distributed import places
from optim.engine.options import check_names
from optim.engine.param_batch import DRAW_KEY, Group, State

Fresh = Callable[[str, Tensor, Group], State]
"""Returns the statistics that a parameter of a name and a group would begin with, on the meta device: a full set of
them would need the memory of a second optimizer."""

# what torch and its schedules write into groups: their state may be loaded before, or without, the schedule
MARKS = (
    *("max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"),
    "differentiable",  # torch adds it to every optimizer that it unpickles
)
SCHEDULE_KEYS = ("param_names", "name", "initial_lr", *MARKS, "blocks")


def name_of(group: Group, i: int, place: int) -> str:
    """Return the name of a parameter of the optimizer's group at ``place``, or its place if it has no name."""
    return str(group["param_names"][i]) if "param_names" in group else f"parameter {i} of group {place}"


def named_parameters(optimizer: Optimizer) -> Iterator[tuple[str, Tensor, Group]]:
    """Yield every parameter with its name, or its place if it has no name, and its group."""
    for place, group in enumerate(optimizer.param_groups):
        for i, param in enumerate(group["params"]):
            yield name_of(group, i, place), param, group


def with_states(optimizer: Optimizer, states: Mapping[Tensor, State]) -> dict[str, Any]:
    """Return an optimizer's ``state_dict`` with other statistics of its parameters."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    by_place = {place: states[param] for place, param in enumerate(params) if param in states}
    return {**optimizer.state_dict(), "state": by_place}


def is_held(state: Mapping[str, Any]) -> bool:
    """Return whether there are statistics, and this process holds them; else it only counts the steps of the owner."""
    return bool(state.keys() - {"step", DRAW_KEY})


def align(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved state with its parameters in the optimizer's order, if both sides know their names.

    An option that did not exist when the state was saved keeps the value that the optimizer was built with: its
    default, unless another was asked for.

    Raises:
        ValueError: a group holds other parameters than the one it was saved from.
    """
    # not strict: torch itself refuses another number of groups, with its own message
    groups = [
        _align_group(i, saved, group, optimizer.defaults)
        for i, (saved, group) in enumerate(zip(state_dict["param_groups"], optimizer.param_groups, strict=False))
    ]
    return {**state_dict, "param_groups": groups + state_dict["param_groups"][len(groups) :]}


def _align_group(place: int, saved: Mapping[str, Any], group: Group, options: Iterable[str]) -> dict[str, Any]:
    names, saved_names = group.get("param_names"), saved.get("param_names")
    saved = {**{key: group[key] for key in options if key in group}, **saved}
    for key in ("lr", "initial_lr"):
        # of a capturable optimizer, on whose device it was
        if isinstance(saved.get(key), Tensor) and not isinstance(group["lr"], Tensor):
            saved[key] = float(saved[key])
    if names is None or saved_names is None:
        return dict(saved)  # torch then matches parameters by their order, as for its own optimizers
    if set(names) != set(saved_names):
        missing, extra = sorted(set(names) - set(saved_names)), sorted(set(saved_names) - set(names))
        raise ValueError(
            f"group {place} was saved with other parameters: it lacks {', '.join(missing[:3]) or 'none'} and has "
            f"{', '.join(extra[:3]) or 'none'} that are not in this optimizer's group; load it into the same model "
            "with the same parameter rules"
        )
    place_of = dict(zip(saved_names, saved["params"], strict=True))
    return {**saved, "params": [place_of[name] for name in names], "param_names": list(names)}


def check(optimizer: Optimizer, state_dict: Mapping[str, Any], fresh: Fresh) -> None:
    """Refuse state with other statistics or options, or of parameters with other shapes.

    Optimizers with the same statistics and options, as AdamW and LaProp, are not distinguished, as torch's own are not.

    Raises:
        ValueError: it does not fit.
    """
    owner = type(optimizer).__name__
    for i, (saved, group) in enumerate(zip(state_dict["param_groups"], optimizer.param_groups, strict=False)):
        if "shared_state" not in saved:
            raise ValueError(f"this state is not {owner}'s: its group {i} lacks shared_state, which this package saves")
        # a mark that this group has too, such as one of a schedule of the user's, is known
        check_names(saved.keys() - group.keys() - set(SCHEDULE_KEYS), group, f"the state saved for {owner}'s group {i}")
    for name, param, expected, state in saved_states(optimizer, state_dict, fresh):
        want, have = _shapes(expected), _shapes(state)
        if want != have and (is_held(state) or not places(param)):
            raise ValueError(f"the state saved for {name} does not fit {owner}: expected {want}, given {have}")
    for i, (group, saved) in enumerate(zip(optimizer.param_groups, state_dict["param_groups"], strict=False)):
        # names only: shapes depend on options, such as a period's length, that are loaded with this state
        expected_names, given_names = sorted(group["shared_state"]), sorted(saved["shared_state"])
        if expected_names != given_names:
            raise ValueError(
                f"the state saved for group {i} does not fit {owner}: expected {expected_names}, given {given_names}"
            )


def loaded_group(group: Group, saved: Mapping[str, Any]) -> Group:
    """Return a group with the options that loading a saved one gives it; shapes of statistics may depend on them."""
    taken = {*group, "blocks"} - {"params", "param_names", "shared_state"}
    kept = {key: value for key, value in group.items() if key != "blocks"}
    return {**kept, **{key: value for key, value in saved.items() if key in taken}}


def without_marks(optimizer: Optimizer, group: Group) -> Group:
    """Return a group without what the schedules of torch add to it, which is no option."""
    return {key: value for key, value in group.items() if key in optimizer.defaults or key not in MARKS}


def restore(optimizer: Optimizer, state_dict: Mapping[str, Any], fresh: Fresh) -> None:
    """Put the saved tensors back, with the dtypes of fresh ones and in memory of their own.

    torch has just loaded them, and has cast every floating-point one to the dtype of its parameter.
    """
    for _, param, expected, saved in saved_states(optimizer, state_dict, fresh):
        for key, value in saved.items():
            fresh_value = expected[key]
            if isinstance(fresh_value, Tensor):
                # copy=True: otherwise both optimizers would update one tensor, if a live state_dict is loaded
                optimizer.state[param][key] = torch.as_tensor(value).to(param.device, fresh_value.dtype, copy=True)
            else:
                optimizer.state[param][key] = int(value)  # a tensor, if a capturable optimizer has saved the count
    for group in optimizer.param_groups:
        # torch moves the state of parameters to their device, but not what a group holds
        device = group["params"][0].device if group["params"] else None
        shared = group["shared_state"]
        for key, value in shared.items():
            if isinstance(value, Tensor):
                shared[key] = value.to(device)
        shared["steps"] = int(shared["steps"])


def saved_states(
    optimizer: Optimizer, state_dict: Mapping[str, Any], fresh: Fresh
) -> Iterator[tuple[str, Tensor, State, Mapping[str, Any]]]:
    """Yield the parameters for which a state was saved, with their names, a state to compare with, and that state."""
    places = [(i, group) for group in state_dict["param_groups"] for i in range(len(group["params"]))]
    for (name, param, group), (i, saved_group) in zip(named_parameters(optimizer), places, strict=False):
        place = saved_group["params"][i]
        if "param_names" not in group:  # it takes the saved ones
            name = saved_group.get("param_names", {i: name})[i]
        if place in state_dict["state"]:
            shared = {"shared_state": saved_group["shared_state"]} if "shared_state" in saved_group else {}
            loaded = {**loaded_group(group, saved_group), **shared}
            yield name, param, fresh(name, param, loaded), state_dict["state"][place]


def explain_cast(optimizer: Optimizer, fresh: Fresh, error: Exception) -> None:
    """Raise an error that says so, if a step failed because a model was cast after its first one.

    Raises:
        RuntimeError: names a parameter whose statistics are of another dtype.
    """
    for name, param, group in named_parameters(optimizer):
        state = optimizer.state.get(param) or {}
        for key, fresh_value in (
            fresh(name, param, group).items() if state and (is_held(state) or not places(param)) else ()
        ):
            if isinstance(fresh_value, Tensor) and getattr(state.get(key), "dtype", None) != fresh_value.dtype:
                raise RuntimeError(
                    f"{type(optimizer).__name__}: {name} is {param.dtype} now, and {key} was made for another dtype; "
                    "cast the model before its first step, or build the optimizer again after a cast"
                ) from error


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(getattr(value, "shape", ())) for key, value in state.items()}
