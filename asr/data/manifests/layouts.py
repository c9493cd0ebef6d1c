"""What a source is made of: one place, several with their splits, or a folder with tables of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from asr.data.manifests.splits import label_of, split_in_name, split_of
from asr.data.manifests.tables import TABLES, ending
from asr.safe_io import named_path

SourceOption: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class Part:
    """A file or folder of a source.

    Attributes:
        path: of it.
        split: that all of it is; None: as it says itself.
    """

    path: Path
    split: str | None = None

    @property
    def folder(self) -> Path:
        """The folder itself, or that of the file."""
        return self.path if self.path.is_dir() else self.path.parent


def parts_of(source: SourceOption, option: str = "data.source") -> list[Part]:
    """Return the parts that a user names: a path, a list whose names say splits, or places by their split.

    Each of several test sets has a name of its own.

    Raises:
        ValueError: a key is no split, or two test sets would have one name.
    """
    if isinstance(source, str):
        return [Part(named_path(source))]
    if not isinstance(source, Mapping):
        listed = [Part(path, split_in_name(path)) for path in map(named_path, source)]
        unknown = [part.path for part in listed if part.split is None]
        if unknown and len(unknown) < len(listed):
            raise ValueError(
                f"{option}: the name {unknown[0].name!r} names no split, but others do; "
                "write {train: …, dev: …, test: …}"
            )
        return named_apart(listed, option)
    parts = []
    for name, places in source.items():
        if (split := split_of(str(name))) is None:
            raise ValueError(f"{option}.{name}: there is no split {name!r}; allowed are train, dev… and test…")
        parts += [Part(named_path(path), split) for path in ([places] if isinstance(places, str) else places)]
    return named_apart(parts, option)


def named_apart(parts: Sequence[Part], option: str) -> list[Part]:
    """Return the parts with a name for each test set; parts of other splits are joined."""
    counts = Counter(part.split for part in parts if (part.split or "").startswith("test"))
    named = [Part(part.path, f"test-{label_of(part.path)}") if counts[part.split] > 1 else part for part in parts]
    again = Counter(part.split for part in named if (part.split or "").startswith("test"))
    if twice := [split for split, count in again.items() if count > 1]:
        raise ValueError(f"{option}: two sets would be called {twice[0]}; name them: {{test-a: …, test-b: …}}")
    return named


def table_parts(folder: Path) -> list[Part]:
    """Return the tables of a folder: one for each split, or ``metadata.csv`` here or in the folder of each split."""
    if named := [Part(path, split) for path in _tables(folder) if (split := split_in_name(path))]:
        return named_apart(named, str(folder))
    if tables := _metadata(folder):
        return [Part(path) for path in tables]
    places = sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
    return [Part(path, split) for place in places if (split := split_in_name(place)) for path in _metadata(place)]


def _metadata(folder: Path) -> list[Path]:
    return [path for path in _tables(folder) if path.name.startswith("metadata.")]


def _tables(folder: Path) -> list[Path]:
    names = sorted(os.listdir(folder))
    return [folder / name for name in names if not name.startswith(".") and ending(Path(name)) in TABLES]
