"""Values in nested plain data, such as configs and summaries, by their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


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


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is neither a mapping nor a list, with its dotted key, in which places in lists are numbers."""
    if isinstance(node, Mapping | list | tuple):
        for name, item in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from leaves(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def is_within(key: str, places: Iterable[str]) -> bool:
    """Return whether a dotted key is one of the places, or lies below one."""
    return any(f"{key}.".startswith(f"{place}.") for place in places)
