"""Checks a checkpoint file before and after it is read: it may be damaged, or come from a stranger.

Before: a zip file of uncompressed parts, each with its checksum, and a pickle that makes only tensors and plain data.
After: the data of every tensor are in the file, and every part that is used has the right type.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
import sys
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from asr.error_text import first_line, is_out_of_memory
from asr.plain_data import MAX_DEPTH, check_plain
from asr.safe_io import check_regular_file
from asr.training.running_averages import NUMBERS

MAX_READ = 2**23  # bytes read at once: the list of parts; our files have some hundred
MAX_PICKLE = 2**24  # bytes of data.pkl, which describes the tensors, and holds the config and the tokenizer
MAX_STEPS = 1_000_000  # opcodes of the pickle; our files have some ten thousand
STEPS_PER_PART, BYTES_PER_PART = 200, 1000  # allowed in addition for each tensor
# bytes at the end of a zip file: the record for large files and its locator, both optional, then the end itself
RECORD, LOCATOR, END = 56, 20, 22
DTYPES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
GLOBALS = {
    "collections OrderedDict",
    "torch Size",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {dtype}Storage" for dtype in DTYPES),
}


class _BoundedReader(io.BufferedReader):
    """A file that refuses reads too large for memory: zipfile would trust a size that the file claims."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most ``MAX_READ`` bytes."""
        if size is not None and size > MAX_READ:
            raise ValueError(f"{size} bytes of it would have to be read at once")
        return super().read(size)


def damage(path: Path) -> str:
    """Return what is wrong with the bytes of a checkpoint; empty if every part matches its checksum.

    Also wrong is what could take more memory than the file has bytes: parts that are compressed or overlap, and pickle
    steps that call anything except constructors of tensors.

    Raises:
        PermissionError: the file may not be read.
    """
    try:
        check_regular_file(path, sys.maxsize)
        with _BoundedReader(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
            _check_directory(file, path.stat().st_size)
            _check_parts_of_file(archive, path.stat().st_size)
            bad = archive.testzip()
            if bad is None:
                _check_pickle(archive)
    # a flipped bit can raise anything: it may claim encryption, an unknown compression, or a position after the end
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, PermissionError):
            raise
        size = f"{path.stat().st_size} bytes" if path.exists() else "no file"
        return f"{why_unreadable(error)} ({size})"
    return f"the checksum of {bad} does not fit" if bad else ""


def why_unreadable(error: Exception) -> str:
    """Return in one line why a checkpoint could not be read."""
    if isinstance(error, pickle.UnpicklingError):
        # torch's own first line advises to let the file run code
        reason = str(error).partition("WeightsUnpickler error:")[2].strip() or "it is not a pickle of plain data"
        return f"its data.pkl cannot be read: {reason.splitlines()[0][:200]}"
    return first_line(error)


def _check_directory(file: io.BufferedReader, num_bytes: int) -> None:
    """Refuse a file in which PyTorch would find other parts than zipfile, which they are checked with.

    PyTorch reads the list of parts from the place that the end of the file states, zipfile from just before that end;
    and where there is a record for large files, PyTorch looks where its locator says, zipfile just before that.
    """
    file.seek(max(0, num_bytes - RECORD - LOCATOR - END))
    tail = file.read()
    end_of_list = num_bytes - END
    record, locator, end = tail[:RECORD], tail[-LOCATOR - END : -END], tail[-END:]
    num_comment_bytes = int.from_bytes(end[20:], "little")
    size, place = struct.unpack("<II", end[12:20])
    if locator.startswith(b"PK\x06\x07"):
        end_of_list = num_bytes - RECORD - LOCATOR - END
        if not record.startswith(b"PK\x06\x06") or struct.unpack("<Q", locator[8:16])[0] != end_of_list:
            raise ValueError("it states two places of its list of parts")
        size, place = struct.unpack("<QQ", record[40:])
    if not end.startswith(b"PK\x05\x06") or num_comment_bytes or place + size != end_of_list:
        raise ValueError("its list of parts is not where the end of the file says")


def _check_parts_of_file(archive: zipfile.ZipFile, num_bytes: int) -> None:
    parts = archive.infolist()
    for part in parts:
        # torch.save never compresses; a few compressed bytes could unpack to more than the memory
        if part.compress_type != zipfile.ZIP_STORED or part.compress_size != part.file_size:
            raise ValueError(f"its part {part.filename[:80]!r} is compressed, which checkpoints are not")
    if sum(part.file_size for part in parts) > num_bytes:
        raise ValueError("its parts overlap")
    if len({part.filename.lower() for part in parts}) < len(parts):
        raise ValueError("two of its parts have one name")


def _check_pickle(archive: zipfile.ZipFile) -> None:
    """Check the opcodes of the pickle without executing any."""
    found = [part for part in archive.infolist() if part.filename.lower().endswith("data.pkl")]
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} parts data.pkl, not one")
    num_parts = len(archive.infolist())
    if found[0].file_size > MAX_PICKLE + BYTES_PER_PART * num_parts:
        raise ValueError(f"its data.pkl has {found[0].file_size} bytes, too many for {num_parts} parts")
    most = MAX_STEPS + STEPS_PER_PART * num_parts
    with archive.open(found[0]) as file:
        content = b"".join(iter(lambda: file.read(2**20), b""))
    for number, (step, argument, _) in enumerate(pickletools.genops(content)):
        if number > most:
            raise ValueError(f"its data.pkl has more than {most} steps, too many for {num_parts} parts")
        if step.name == "GLOBAL" and argument not in GLOBALS:
            raise ValueError(f"it calls {str(argument).replace(' ', '.')[:80]}, which no checkpoint needs")
        if step.name == "LONG4":
            raise ValueError("it holds a number of more than 255 bytes, which no checkpoint needs")
        if step.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):
            raise ValueError(f"it has the step {step.name}, which no checkpoint needs")


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
