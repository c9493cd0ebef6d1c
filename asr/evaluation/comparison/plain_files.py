"""Small files of strangers, read as plain data: never too large, never code, never more than was asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 2**22  # of a config or a summary; ours have some ten thousand
MAX_TABLE_BYTES = 2**30  # of metrics and errors per utterance


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases, with which a short file grows endless."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases")
        return super().compose_node(parent, index)


def check_file(path: Path, max_bytes: int = MAX_TABLE_BYTES) -> None:
    """Refuse what is no file, or too large a one.

    Raises:
        ValueError: it is.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    size = path.stat().st_size
    if size > max_bytes:
        raise ValueError(f"{path} has {size} bytes, more than the {max_bytes} that are read")


def read_yaml(path: Path) -> Any:
    """Return the plain data of a YAML file.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    check_file(path, MAX_BYTES)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no plain YAML: {str(error).splitlines()[0]}") from None


def read_json(path: Path) -> Any:
    """Return the data of a JSON file.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    check_file(path, MAX_BYTES)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None


def at(node: Any, *keys: str) -> Any:
    """Return what stands under nested keys, or None."""
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def number_at(node: Any, *keys: str) -> float | None:
    """Return the finite number under nested keys, or None."""
    found = at(node, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        return float(found) if math.isfinite(found) else None
    except OverflowError:
        return None
