"""Config nodes → objects, checked before anything is built.

A node names a class or function in ``_target_``, which must be one that its place in the config may build; keys and
values are checked against the target's signature.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, Unpack, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from asr.cli.builders.targets import locate, may_be_partial
from asr.cli.errors import ConfigError, did_you_mean
from asr.error_text import is_out_of_memory
from asr.errors import RunFailed

SPECIAL_KEYS = {"_target_", "_partial_", "_convert_"}
MAX_INT = 2**53  # more is not exact in a float, and more than 2^63 overflows in libraries
NUMBER_LISTS = {int: Sequence[int], float: Sequence[float]}


def instantiate(node: Mapping[str, Any], key: str, **arguments: Any) -> Any:
    """Build the object that a config node describes.

    Args:
        node: resolved plain config with ``_target_``; nested nodes are built first.
        key: where the node stands in the config; decides what it may build.
        arguments: what the program itself passes on, beside the configured values.

    Raises:
        ConfigError: a target that is not allowed there, an unknown or missing key, or a value that is refused.
    """
    target = locate(node.get("_target_"), key)
    if node.get("_partial_") and not may_be_partial(key):
        raise ConfigError(f"{key}._partial_ is not allowed here, where an object is needed; remove it")
    values: dict[str, Any] = {}
    for name, value in node.items():
        if name not in SPECIAL_KEYS:
            values[name] = _built(value, f"{key}.{name}")
    check_keys(target, values | arguments, key, partial=bool(node.get("_partial_")))
    for name in values.keys() & arguments.keys():
        raise ConfigError(f"{key}.{name} cannot be given: it follows from other parts of the config")
    built = Configured(target, check_values(target, values, key) | arguments, key)
    return built if node.get("_partial_") else built()


def _built(value: Any, key: str) -> Any:
    """Build the nodes within a value, in lists and mappings too."""
    if isinstance(value, list):
        return [_built(item, f"{key}.{i}") for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if "_target_" in value:
        return instantiate(value, key)
    return {name: _built(item, f"{key}.{name}") for name, item in value.items()}


class Configured:
    """A class or function with its configured arguments: waits for the rest, and names the key when it refuses."""

    def __init__(self, target: Any, values: Mapping[str, Any], key: str) -> None:
        self.func, self.keywords, self.key = target, dict(values), key

    def with_known(self, arguments: Mapping[str, Any]) -> Any:
        """Call the target with those of ``arguments`` that it has."""
        parameters = parameters_of(self.func)
        return self(**{name: value for name, value in arguments.items() if name in parameters})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the target with the configured and the given arguments."""
        try:
            return self.func(*args, **{**self.keywords, **kwargs})
        except (ConfigError, RunFailed, OSError):
            raise
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self.key}: {error}") from error
        # constructors of torch and Lightning may raise anything for arguments that they cannot use
        except Exception as error:
            if is_out_of_memory(error):
                raise
            plain = [item for item in self.keywords.items() if isinstance(item[1], bool | int | float | str | None)]
            given = ", ".join(f"{name}={value}" for name, value in plain)
            name = getattr(self.func, "__name__", self.key)
            raise ConfigError(f"{self.key}: {name}({given}): {type(error).__name__}: {error}") from error


def _plain_hint(hint: Any) -> Any:
    """Return the part of an annotation that plain values can be checked against; None if it has no such part."""
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        kept = [part for part in get_args(hint) if part is type(None) or _plain_hint(part) is not None]
        return Union[tuple(kept)] if kept else None  # noqa: UP007
    if get_origin(hint) is tuple and Ellipsis not in get_args(hint):
        plain = [_plain_hint(part) for part in get_args(hint)]
        return None if None in plain else tuple[tuple(plain)]  # type: ignore[misc]
    try:
        TypeAdapter(hint)
    except PydanticUserError:
        return None
    return hint


def parameters_of(target: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class or function; ``**options: Unpack[SomeTypedDict]`` counts as the dict's keys."""
    parameters = dict(inspect.signature(target).parameters)
    for name, options in _unpacked(target).items():
        del parameters[name]
        parameters |= {key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in options}
    return parameters


def _unpacked(target: Any) -> dict[str, dict[str, Any]]:
    """Return the annotations that each ``**options: Unpack[SomeTypedDict]`` stands for."""
    dicts = {name: get_args(hint)[0] for name, hint in _hints(target).items() if get_origin(hint) is Unpack}
    return {name: get_type_hints(options, include_extras=True) for name, options in dicts.items()}


def _hints(target: Any) -> dict[str, Any]:
    """Return the annotations of a constructor or function; nothing if they name what cannot be found."""
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except (NameError, TypeError):
        return {}


def check_keys(target: Any, values: Mapping[str, Any], key: str, partial: bool) -> None:
    """Refuse keys that the target does not have, and miss those that it needs."""
    parameters = parameters_of(target)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in values:
        if name not in parameters:
            known = [p for p in parameters if p not in ("self", "params", "named_parameters")]
            raise ConfigError(
                f"{key}.{name}: {target.__qualname__} has no such option.{did_you_mean(name, known)} "
                f"Allowed: {', '.join(known) or 'none, it has no options'}."
            )
    if not partial:
        needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        missing = [name for name in needed if name not in values]
        if missing:
            raise ConfigError(f"{key}: {', '.join(missing)} must be given")


def check_values(target: Any, values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the values converted to the annotated types; refuse those that do not fit."""
    for name, value in values.items():
        _refuse_infinite(value, f"{key}.{name}")
    hints = _hints(target)
    for options in _unpacked(target).values():
        hints |= options
    return {name: _checked(value, hints.get(name, Any), f"{key}.{name}") for name, value in values.items()}


def _checked(value: Any, hint: Any, key: str) -> Any:
    """Check plain values; objects, and types that no plain value has, are their owner's to check."""
    hint = _plain_hint(hint)
    if hint is None or not isinstance(value, bool | int | float | str | list | dict | None):
        return value
    _refuse_no_number(value, hint, key)
    if get_origin(hint) is tuple and Ellipsis not in get_args(hint):
        size = len(get_args(hint))
        if not isinstance(value, list) or len(value) != size:
            raise ConfigError(f"{key} must be a list of {size} values, given {value!r}")
    if hint is type(None) and value is not None:
        raise ConfigError(f"{key} must be null, or hold _target_ and options, given {value!r}")
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{key}: {error.errors()[0]['msg']}, given {value!r}") from error


def _refuse_infinite(value: Any, key: str) -> None:
    """Refuse NaN and infinity, which no option has a use for, but which comparisons in constructors may let pass."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key} must be a finite number, given {value}")
    if isinstance(value, int) and abs(value) > MAX_INT:
        raise ConfigError(f"{key} must be at most {MAX_INT}, given {str(value)[:60]}")
    if isinstance(value, list):
        for i, item in enumerate(value):
            _refuse_infinite(item, f"{key}.{i}")


def _refuse_no_number(value: Any, hint: Any, key: str) -> None:
    """Refuse what is no number, or no list of numbers, but would be made into one."""
    allowed = set(get_args(hint)) if get_origin(hint) is Union else {hint}
    if allowed & {int, float} and not allowed & {bool, str} and isinstance(value, bool | str):
        raise ConfigError(f"{key} must be {'a' if float in allowed else 'a whole'} number, given {value!r}")
    for item, numbers in NUMBER_LISTS.items():
        if value is None or allowed - {type(None)} != {numbers}:
            continue
        if not isinstance(value, list):
            raise ConfigError(f"{key} must be a list of numbers, such as [2,4], given {value!r}")
        for i, number in enumerate(value):
            _refuse_no_number(number, item, f"{key}.{i}")
