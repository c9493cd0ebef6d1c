"""Files of a source folder, and the values in their lines."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Prepare = TypeVar("Prepare", bound=Callable[..., Any])
SourceFiles = Callable[[Path], Iterable[Path]]


def reads(source_files: SourceFiles) -> Callable[[Prepare], Prepare]:
    """Declare which files of a source folder a prepare function reads; other files do not change its fingerprint.

    Args:
        source_files: folder → the files below it.
    """

    def declare(prepare: Prepare) -> Prepare:
        prepare.source_files = source_files  # type: ignore[attr-defined]
        return prepare

    return declare


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder that are not hidden, without following links to folders."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


def as_text(value: object, name: str) -> str:
    """Return a value of a line as text; numbers become text, and null, or NaN as pandas writes it, an empty one.

    Raises:
        ValueError: it is a list or the like.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name} must be text or a number, given {value!r:.60}")
    return str(value)


def as_number(value: object, name: str) -> float:
    """Return a value of a line as a number, also if it is written as text.

    Raises:
        ValueError: it is not a finite number.
    """
    try:
        number = float("nan" if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a number, given {value!r:.60}")
    return number


def as_integer(value: object, name: str) -> int:
    """Return a value of a line as a whole number.

    Raises:
        ValueError: it is not one.
    """
    if (number := as_number(value, name)) != int(number):
        raise ValueError(f"{name} must be a whole number, given {value!r}")
    return int(number)
