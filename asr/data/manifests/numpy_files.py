"""Reads numpy files only if they hold as many bytes as their headers claim."""

from __future__ import annotations

import math
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from asr.error_text import first_line
from asr.errors import raise_if_out_of_resources

MAX_NPY_BYTES = 2**28  # features of a recording: of two hours in 32 bits
MAX_HEADER_BYTES = 1024  # of an array, 118 in what numpy writes; Python's parser takes much memory for deep nesting
MAX_NPZ_BYTES = 2**29  # prepared data have 16 bytes for each cut of a split
READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_npy(path: str | Path, shape: tuple[int, ...]) -> None:
    """Refuse a file that is no array of a shape, or claims a larger one than it holds, before numpy allocates it.

    Args:
        path: of the file.
        shape: of the array, as far as its size decides how much memory it takes: no dimension may be larger.

    Raises:
        ValueError: it is refused.
        OSError: it does not exist.
    """
    # opening a pipe waits for a writer
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is not a regular file")
    with open(path, "rb") as file:
        found, _ = array_shape(file, status.st_size, str(path))
    refuse_other_shape(str(path), found, shape, status.st_size)


def refuse_other_shape(name: str, found: tuple[int, ...], told: tuple[int, ...], num_bytes: int) -> None:
    """Refuse an array with other or larger dimensions than it should have, or with more bytes than are read.

    Args:
        name: of the file, for messages.
        found: shape in the file.
        told: shape that it should have; no dimension may be larger.
        num_bytes: of the file.

    Raises:
        ValueError: it is refused.
    """
    if len(found) != len(told) or any(there > most for there, most in zip(found, told, strict=True)):
        raise ValueError(f"{name} holds an array of shape {found}, not {told}")
    if num_bytes > MAX_NPY_BYTES:
        raise ValueError(f"{name} has {num_bytes} bytes, more than the {MAX_NPY_BYTES} that are read; divide it")


def load_npz(path: Path, dtypes: Mapping[str, type], max_unpacked_bytes: int = 0) -> dict[str, NDArray[Any]]:
    """Return arrays of an npz file.

    Args:
        path: of the file.
        dtypes: by name of the array; abstract ones such as ``np.floating`` allow all of their kind.
        max_unpacked_bytes: limit of all arrays together; 0: none may be compressed, so that they take no more memory
            than the file has bytes (as ``numpy.savez`` writes them).

    Raises:
        ValueError: the file is damaged, too large when unpacked, or holds other arrays.
    """
    try:
        with zipfile.ZipFile(path) as parts:
            _check_sizes(parts.infolist(), path.stat().st_size, max_unpacked_bytes)
            found = {name: _member(parts, name) for name in dtypes}
    # the readers may raise anything on damaged bytes
    except Exception as error:
        if isinstance(error, FileNotFoundError):
            raise ValueError(f"{path} is missing") from None
        raise_if_out_of_resources(error, str(path))
        raise ValueError(f"{path} cannot be read as an npz with {' and '.join(map(repr, dtypes))}: {error}") from error
    for name, dtype in dtypes.items():
        if not np.issubdtype(found[name].dtype, dtype):
            raise ValueError(
                f"{path}: {name!r} is {found[name].dtype} of shape {found[name].shape}, expected {dtype.__name__}"
            )
    return found


def _check_sizes(parts: list[zipfile.ZipInfo], num_bytes: int, max_unpacked_bytes: int) -> None:
    size, most = sum(part.file_size for part in parts), max_unpacked_bytes or MAX_NPZ_BYTES
    if size > most:
        raise ValueError(f"it unpacks to {size} bytes, more than the {most} that are read")
    if max_unpacked_bytes:
        return
    for part in parts:
        if part.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"its part {part.filename[:80]!r} is compressed, which prepared data are not")
    if size > num_bytes:
        raise ValueError(f"its parts claim {size} bytes, more than the {num_bytes} of the file")


def _member(parts: zipfile.ZipFile, name: str) -> NDArray[Any]:
    member = parts.getinfo(f"{name}.npy")
    with parts.open(member) as file:
        array_shape(file, member.file_size, name)
    with parts.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def array_shape(file: IO[bytes], size: int, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of an array from its header, if the file is as large as that claims.

    Args:
        file: at the beginning of an array of numpy; no more than its header is read.
        size: bytes of the whole array, with its header.
        name: of the file, for messages.

    Raises:
        ValueError: it is no such array, holds pickled objects, or claims more than there is.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version not in READERS:
            raise ValueError(f"format {version} is not read")
        shape, _, dtype = READERS[version](file, max_header_size=MAX_HEADER_BYTES)
    # numpy parses the header as Python does, and may raise anything
    except Exception as error:
        raise_if_out_of_resources(error, name)
        raise ValueError(f"{name} has no header of numpy that can be read: {first_line(error)}") from None
    claimed = math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError(f"{name} holds pickled objects, which could run code: allow_pickle=False")
    if min(shape, default=0) < 0 or claimed > size - file.tell():
        raise ValueError(f"{name} claims {dtype} of shape {shape}, {claimed} bytes, and holds {size - file.tell()}")
    return tuple(shape), dtype
