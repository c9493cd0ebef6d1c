"""Reads YAML and JSON files of plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from asr.error_text import first_line

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, if PyYAML was built with libyaml


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
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None


def check_plain(node: Any, where: str) -> None:
    """Refuse nested data that is more than mappings with text keys, lists and plain values.

    Args:
        node: the data.
        where: it is from, for messages.

    Raises:
        ValueError: a key or a value is of another type.
    """
    todo = [("", node)]
    while todo:
        key, value = todo.pop()
        if isinstance(value, Mapping):
            for name, item in value.items():
                if not isinstance(name, str):
                    raise ValueError(f"{where}: {key or 'the top level'} has the key {name!r}; only text is allowed")
                todo.append((f"{key}.{name}" if key else name, item))
        elif isinstance(value, list | tuple):
            todo += [(f"{key}.{number}", item) for number, item in enumerate(value)]
        elif not isinstance(value, bool | int | float | str | None):
            raise ValueError(f"{where}: {key} is a {type(value).__name__}; only plain values are allowed")
