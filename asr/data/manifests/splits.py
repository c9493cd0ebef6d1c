"""Which split a name means: in a column, or in the name of a file or folder."""

from __future__ import annotations

import re
from pathlib import Path

SPLIT_ALIASES = {"val": "dev", "valid": "dev", "validation": "dev", "training": "train", "eval": "test"}
WORDS = {**SPLIT_ALIASES, **{name: name for name in ("train", "dev", "test")}}
KINDS_OF_FILES = {"manifest", "manifests", "metadata", "data", "set", "split", "list"}  # no part of a split's name


def split_of(name: str) -> str | None:
    """Return the split that a name means, ``train``, ``dev…`` or ``test…``; None if it means none."""
    split = SPLIT_ALIASES.get(name, name)
    return split if split == "train" or split.startswith(("dev", "test")) else None


def split_in_name(path: Path) -> str | None:
    """Return the split that a word in the name of a file or folder means; None if there is none.

    ``an4_train_manifest.json`` is train, ``val.csv`` dev, and ``test-other`` and ``cv_test_other.tsv`` test-other.
    """
    words = _words(path)
    place = next((number for number, word in enumerate(words) if word in WORDS), None)
    if place is None:
        return None
    kind, rest = WORDS[words[place]], [word for word in words[place + 1 :] if word not in KINDS_OF_FILES]
    return kind if kind == "train" else "-".join([kind, *rest])


def label_of(path: Path) -> str:
    """Return what the name of a file or folder says beside its split, or the name of its folder."""
    rest = [word for word in _words(path) if word not in WORDS and word not in KINDS_OF_FILES]
    return "-".join(rest) or path.resolve().parent.name


def _words(path: Path) -> list[str]:
    return [word for word in re.split(r"[\W_]+", path.name.partition(".")[0].lower()) if word]
