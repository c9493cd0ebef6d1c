"""Checks what was read from a checkpoint: the data of every tensor are in the file, every part has the right type."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch

from asr.plain_data import check_plain
from asr.training.checkpoints.file_checks import MAX_STEPS
from asr.training.running_averages import NUMBERS

MAX_DEPTH = 50


def check_contents(state: object, num_bytes: int) -> None:
    """Refuse contents other than plain data, and tensors whose data are in the file.

    Args:
        state: as it was read.
        num_bytes: size of the file.

    Raises:
        ValueError: names the part.
    """
    todo: list[tuple[str, Any, int]] = [("", state, 0)]
    storages: dict[int, int] = {}
    num_nodes = 0
    while todo:
        key, value, depth = todo.pop()
        num_nodes += 1  # visits, not objects: a pickle can refer to one object a million times
        if num_nodes > 2 * MAX_STEPS or depth > MAX_DEPTH:
            raise ValueError(f"it holds more than {2 * MAX_STEPS} values, or nests them deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            for name, item in value.items():
                if not isinstance(name, str | int):
                    raise ValueError(f"{key or 'the top level'} has the key {name!r:.80}; only text is allowed")
                todo.append((f"{key}.{name}" if key else f"{name}", item, depth + 1))
        elif isinstance(value, list | tuple):
            todo += [(f"{key}.{number}", item, depth + 1) for number, item in enumerate(value)]
        elif isinstance(value, torch.Tensor):
            _check_tensor(key, value, storages)
        elif not isinstance(value, bool | int | float | str | None):
            raise ValueError(f"{key} is a {type(value).__name__}")
    if sum(storages.values()) > num_bytes:
        raise ValueError(f"its tensors have {sum(storages.values())} bytes, more than the file with {num_bytes}")


def _check_tensor(key: str, tensor: torch.Tensor, storages: dict[int, int]) -> None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ValueError(f"{key} is a tensor of a kind that no checkpoint has")
    storage = tensor.untyped_storage()
    if tensor.nbytes > storage.nbytes():
        raise ValueError(f"{key} is a tensor of {tensor.nbytes} bytes, of which the file has {storage.nbytes()}")
    storages[storage._cdata] = storage.nbytes()  # several tensors may be views of one storage


def mapping_at(node: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a mapping that a checkpoint must have.

    Raises:
        ValueError: it is missing, or something else.
    """
    found = node.get(key)
    if not isinstance(found, Mapping):
        raise ValueError(f"it has no mapping {key!r}" if found is None else f"{key} is a {type(found).__name__}")
    return dict(found)


def count_at(node: Mapping[str, Any], key: str) -> int:
    """Return a count that a checkpoint must have.

    Raises:
        ValueError: it is missing, or something else.
    """
    found = node.get(key)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 2**63:  # True is an int
        raise ValueError(f"{key} must be a number of at least 0, and is {found!r:.80}")
    return found


def check_werdict(part: Mapping[str, Any]) -> None:
    """Refuse this program's own part of a checkpoint unless it is plain data of the right types.

    Raises:
        ValueError: names the part.
    """
    for key in ("config", "tokenizer", "data"):
        check_plain(mapping_at(part, key), f"werdict.{key}")
    data = part["data"]
    for key in ("fingerprint", "folder"):
        if not isinstance(data.get(key), str):
            raise ValueError(f"werdict.data.{key} must be text, and is {data.get(key)!r:.80}")
    longest = data.get("utterance_s", 1.0)  # older checkpoints have none
    if isinstance(longest, bool) or not isinstance(longest, int | float) or not 0 < longest < math.inf:
        raise ValueError(f"werdict.data.utterance_s must be seconds above 0, and is {longest!r:.80}")
    notes = data.get("notes")
    if not isinstance(notes, list | tuple) or not all(isinstance(note, str) for note in notes):
        raise ValueError(f"werdict.data.notes must be a list of texts, and is {notes!r:.80}")


def check_weights(weights: Mapping[str, Any], where: str, dtype: torch.dtype | None = None) -> None:
    """Refuse weights that are not tensors by name, or not finite.

    Args:
        weights: of a checkpoint.
        where: they are there.
        dtype: that they are to be finite in; None: their own.

    Raises:
        ValueError: names the first such weight.
    """
    for name, weight in weights.items():
        if not isinstance(name, str) or not isinstance(weight, torch.Tensor):
            raise ValueError(f"{where}.{name} is not a weight but a {type(weight).__name__}")
        if weight.is_floating_point() and not weight.to(dtype or weight.dtype).isfinite().all():
            raise ValueError(f"{where}.{name} holds numbers that are not finite: the model has diverged")


def check_averages(state: Mapping[str, Any], weights: Mapping[str, torch.Tensor], updates: int) -> None:
    """Refuse averages that do not fit the weights of the same checkpoint.

    Args:
        state: of ``RunningAverages``.
        weights: of the same checkpoint.
        updates: that the checkpoint was saved after.

    Raises:
        ValueError: names the part.
    """
    for name in NUMBERS:
        # the moving average counts the updates that were not averaged too, of another interval perhaps
        if count_at(state, name) > updates and name != "ema_updates":
            raise ValueError(f"averages.{name} is {state[name]} after {updates} updates")
    total = mapping_at(state, "sum")
    unknown = total.keys() - weights.keys()
    if unknown:
        raise ValueError(f"averages.sum has weights of other names, such as {min(map(str, unknown))!r:.80}")
    _check_like(total, total, weights, "averages.sum", torch.float64)
    for name, sums in total.items():
        if not (sums / max(1, state["num_averaged"])).to(weights[name].dtype).isfinite().all():
            raise ValueError(f"averages.sum.{name} holds numbers that are too large for {weights[name].dtype}")
    marks = state.get("marks")
    if not isinstance(marks, list | tuple) or not 1 <= len(marks) <= 2:
        raise ValueError("averages.marks must be a list of one or two marks")
    for number, mark in enumerate(marks):
        where = f"averages.marks.{number}"
        if not isinstance(mark, Mapping):
            raise ValueError(f"{where} is a {type(mark).__name__}")
        count_at(mark, "update")
        names = total if count_at(mark, "num_averaged") else ()
        _check_like(mapping_at(mark, "mean"), names, weights, f"{where}.mean", torch.float32)
    before, num = marks[0]["num_averaged"], state["num_averaged"]
    if not before < max(1, num):
        raise ValueError(f"averages.marks.0 has {before} of {num} updates before it: none is left")
    if state.get("ema") is not None:
        _check_like(mapping_at(state, "ema"), total, weights, "averages.ema", torch.float32)


def _check_like(
    found: Mapping[str, Any],
    names: Collection[str],
    weights: Mapping[str, torch.Tensor],
    where: str,
    dtype: torch.dtype,
) -> None:
    check_weights(found, where)
    if found.keys() != set(names):
        raise ValueError(f"{where} has {len(found)} weights, not the {len(names)} of averages.sum")
    for name, tensor in found.items():
        if tensor.shape != weights[name].shape or tensor.dtype is not dtype:
            raise ValueError(
                f"{where}.{name} is {tensor.dtype} of shape {list(tensor.shape)}, not {dtype} of the weight's "
                f"shape {list(weights[name].shape)}"
            )
