"""Files read and written whole: locks, atomic writes, names as users give them, and YAML and JSON as plain data."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from werdict.errors import first_line

WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # of exFAT and some network disks: no symbolic links
TEMPORARY = ".tmp"  # after the name of a file that is being written
POINTER = b"version https://git-lfs.github.com/spec/"  # how Git LFS begins what stands for a file not yet fetched


def named_path(value: object) -> Path:
    """Return the path that a user names, ``~`` and ``~user`` expanded.

    Raises:
        ValueError: there is no such user, or no home folder.
    """
    try:
        return Path(str(value)).expanduser()
    except RuntimeError:
        user = str(value).partition("/")[0]
        why = f"no user is called {user[1:]!r}" if user[1:] else "HOME is not set"
        raise ValueError(f"{str(value)!r}: {why}; write ./{user} for a file") from None


def refuse_pointer(start: bytes, name: object) -> None:
    """Raise a ValueError if ``start``, of the content of a file, is what Git LFS leaves in the file's place."""
    if start.startswith(POINTER):
        raise ValueError(
            f"{name} is a pointer of Git LFS, not the file itself: run git lfs pull there, or fetch it by hf download"
        )


def replace_by(path: Path, make: Callable[[Path], object]) -> None:
    """Move to ``path`` what ``make`` writes under a temporary name, in one step that survives a power cut.

    Raises:
        OSError: it cannot be written; what was there before is as it was.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    temporary.unlink(missing_ok=True)
    try:
        with naming(path):
            make(temporary)
        temporary.replace(path)
    finally:
        # left where writing failed, and where both names were links to one file already
        temporary.unlink(missing_ok=True)
    sync(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add this file's name to errors of the disk that name no file, such as a full disk while writing."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def lock(file: IO[Any]) -> None:
    """Lock a file, without waiting, until this process and all that inherit it have closed it or ended.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: its disk locks no files; names it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        reason = f"{error.strerror}: its disk locks no files, so that two processes could write at once; name a folder"
        raise OSError(error.errno, f"{reason} on another disk", file.name) from error


@contextlib.contextmanager
def locked_folder(folder: Path, wait: bool) -> Iterator[None]:
    """Let no other process that asks for the same lock write to a folder; some network disks lock none.

    Args:
        folder: which exists.
        wait: until the other process has ended.

    Raises:
        BlockingIOError: another process has locked it, and is not waited for.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if isinstance(error, BlockingIOError) and not wait:
                raise
            # its disk locks none: what is written whole and never overwritten still is
        yield
    finally:
        os.close(descriptor)


def write_more(path: Path) -> None:
    """Append to a file until the system refuses, or until as much is written as libraries buffer.

    Torch (2.13) and onnx (1.19) write in C++, and do not say why that failed; the system does.

    Raises:
        OSError: nothing can be written, and why.
    """
    with path.open("ab", buffering=0) as file:
        for _ in range(64):
            file.write(bytes(2**16))
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, or replace it, in one step: other processes and later ones see all of it or none."""
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content

    def make(temporary: Path) -> None:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    replace_by(path, make)


def refuse_existing(path: Path) -> None:
    """Refuse a path that exists, even as a link to nothing.

    Raises:
        FileExistsError: it exists.
    """
    if os.path.lexists(path):
        raise FileExistsError(
            f"{path} exists and reports are never overwritten; remove the old report or give another output folder"
        )


def write_new(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file, and the folders that lead to it; text as UTF-8, and what is large piece by piece.

    Raises:
        FileExistsError: the file exists; it is not changed.
    """
    whole = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    # not named after the file, whose name may be as long as names can be
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with naming(path), temporary.open("wb") as file:
            file.writelines([whole] if isinstance(whole, bytes) else whole)
        refuse_existing(path)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes ``path`` at the end of the block, or is removed if that fails.

    Raises:
        FileExistsError: the path exists; it is not changed.
    """
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        # a rename would replace an empty folder
        refuse_existing(path)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, if PyYAML was built with libyaml
TRUST = "WERDICT_TRUST"  # names of packages, separated by commas, for this process and those that it starts


def read_yaml(path: Path) -> Any:
    """Return the plain data of a YAML file.

    Raises:
        ValueError: it does not exist, or is not YAML of plain values.
    """
    try:
        return yaml.load(_content(path), LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not plain YAML: {' '.join(str(error).split())}") from None


def read_json(path: Path) -> Any:
    """Return the data of a JSON file.

    Raises:
        ValueError: it does not exist, or is not JSON.
    """
    content = _content(path)
    try:
        return json.loads(content)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {first_line(error)}") from None


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    refuse_pointer(content, path)
    return content


def trusted() -> list[str]:
    """Return the packages whose classes files of others may name."""
    return [name for name in os.environ.get(TRUST, "").split(",") if name]


def trust(packages: Iterable[str]) -> None:
    """Trust more packages, in this process and those that it starts."""
    if names := dict.fromkeys([*trusted(), *packages]):
        os.environ[TRUST] = ",".join(names)


def get_nested(node: Any, *keys: str) -> Any:
    """Return the value under nested keys, or None."""
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted key, tuples as lists; an empty mapping is a value."""
    if isinstance(node, Mapping) and node:
        return {key: value for name, item in node.items() for key, value in flatten(item, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): list(node) if isinstance(node, tuple) else node}


def is_within(key: str, places: Iterable[str]) -> bool:
    """Return whether a dotted key is one of the places, or lies below one."""
    return any(f"{key}.".startswith(f"{place}.") for place in places)
