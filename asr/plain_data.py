"""Reads YAML and JSON that others may have made: size limits, plain values only, no aliases, no tags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from asr.error_text import first_line
from asr.safe_io import check_regular_file

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, if PyYAML was built with libyaml
MAX_BYTES = 2**20  # of a config or a summary; ours have some ten thousand
MAX_NODES = 100_000  # of nested data; a config has some hundred
MAX_DEPTH = 50
MAX_DIGITS = 100  # characters of a number in YAML: those of base 60 take quadratic time


def read_yaml(path: Path) -> Any:
    """Return the plain data of a YAML file without tags and aliases: with these a short file can grow without limit.

    Raises:
        ValueError: the file does not exist, or cannot be read.
    """
    check_regular_file(path, MAX_BYTES)
    try:
        text = path.read_text(encoding="utf-8")
        for event in _bounded_events(text):
            # a program writes none into a config
            tag = getattr(event, "tag", None)
            if tag is not None:
                raise yaml.YAMLError(f"it has the tag {tag!r:.80}; only untagged values are allowed")
        return yaml.load(text, LOADER)
    except MemoryError:
        raise
    # PyYAML's constructors raise any error of Python for values that only look right, such as a 99th month
    except Exception as error:
        raise ValueError(f"{path} is not plain YAML: {_where_and_why(error, path)}") from None


def checked_scalars(path: Path) -> list[str]:
    """Return the keys and values of a YAML file; refuse one that is too large, nested too deeply, or has aliases.

    Raises:
        ValueError: it is.
    """
    check_regular_file(path, MAX_BYTES)
    try:
        events = _bounded_events(path.read_text(encoding="utf-8"))
        return [event.value for event in events if isinstance(event, yaml.ScalarEvent)]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not plain YAML: {_where_and_why(error, path)}") from None


def _where_and_why(error: Exception, path: Path) -> str:
    """Return in one line why a text is not YAML, with the number of the line if it is known."""
    line = None
    if isinstance(error, UnicodeDecodeError):
        line, reason = path.read_bytes()[: error.start].count(b"\n"), f"it is not UTF-8 ({error.reason})"
    elif isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line, reason = error.problem_mark.line, error.problem or str(error.context)
    elif isinstance(error, yaml.reader.ReaderError):
        line, reason = path.read_bytes()[: error.position].count(b"\n"), error.reason
    else:
        reason = first_line(error, 200)
    return reason if line is None else f"line {line + 1}: {reason}"


def _bounded_events(text: str) -> Iterator[yaml.Event]:
    """Yield the events of a YAML text without aliases, deep nesting and endless numbers."""
    depth = 0
    for event in yaml.parse(text, LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(event, "it has aliases")
        if depth > MAX_DEPTH:
            raise _refusal(event, f"it is nested deeper than {MAX_DEPTH}")
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and len(event.value) > MAX_DIGITS:
            kind = yaml.resolver.Resolver().resolve(yaml.ScalarNode, event.value, (True, False))
            if kind != yaml.resolver.Resolver.DEFAULT_SCALAR_TAG:
                problem = f"it has a number of {len(event.value)} characters; {MAX_DIGITS} are allowed"
                raise _refusal(event, problem)
        yield event


def _refusal(event: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def read_json(path: Path, max_bytes: int = MAX_BYTES, max_values: int = 2 * MAX_NODES) -> Any:
    """Return the data of a JSON file; an empty mapping takes three bytes of the file, but sixty times that in memory.

    Args:
        path: of the file.
        max_bytes: that it may have.
        max_values: brackets and commas that it may have, those in texts included.

    Raises:
        ValueError: the file does not exist, or cannot be read.
    """
    check_regular_file(path, max_bytes)
    try:
        data = path.read_bytes()
        if sum(data.count(mark) for mark in b"[{,") > max_values:
            raise ValueError(f"it has more than {max_values} brackets and commas")
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def check_plain(node: Any, where: str) -> None:
    """Refuse nested data that is more than mappings with text keys, lists and plain values, or too much of it.

    Args:
        node: the data.
        where: it is from, for messages.

    Raises:
        ValueError: a key or a value is of another type, or there are too many, or nested too deeply.
    """
    todo, num_nodes = [("", node, 0)], 0
    while todo:
        key, value, depth = todo.pop()
        num_nodes += 1
        # shared parts count each time: walking them takes as long
        if num_nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ValueError(f"{where} holds more than {MAX_NODES} values, or nests them deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            for name, item in value.items():
                if not isinstance(name, str):
                    raise ValueError(f"{where}: {key or 'the top level'} has the key {name!r}; only text is allowed")
                todo.append((f"{key}.{name}" if key else name, item, depth + 1))
        elif isinstance(value, list | tuple):
            todo += [(f"{key}.{number}", item, depth + 1) for number, item in enumerate(value)]
        elif not isinstance(value, bool | int | float | str | None):
            raise ValueError(f"{where}: {key} is a {type(value).__name__}; only plain values are allowed")
