"""Plain data, such as configs and summaries: nested values by their keys, and files of others that hold them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from asr.errors import first_line
from asr.safe_io import refuse_pointer

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


def at(node: Any, *keys: str) -> Any:
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
