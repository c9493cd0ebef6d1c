"""Config nodes → objects, checked before anything is built.

A node names a class or function in ``_target_``. Configs travel inside checkpoints and between people, so a target must
belong to what its place in the config may hold; keys and values are checked against the target's signature.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

import hydra.utils
from hydra.errors import HydraException
from lightning.fabric.utilities.exceptions import MisconfigurationException
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from asr.cli.errors import ConfigError, did_you_mean

SPECIAL_KEYS = {"_target_", "_partial_", "_convert_"}
NUMBER_LISTS = {int: Sequence[int], float: Sequence[float]}


def instantiate(node: Mapping[str, Any], key: str, allowed: tuple[str, ...], **arguments: Any) -> Any:
    """Build the object that a config node describes.

    Args:
        node: resolved plain config with ``_target_``; nested nodes are built first.
        key: where the node stands in the config, for messages.
        allowed: module prefixes that targets may come from.
        arguments: what the program itself passes on, beside the configured values.

    Raises:
        ConfigError: a target outside ``allowed``, an unknown or missing key, or a value that is refused.
    """
    target = locate(node, key, allowed)
    values: dict[str, Any] = {}
    for name, value in node.items():
        if name not in SPECIAL_KEYS:
            values[name] = _built(value, f"{key}.{name}", allowed)
    check_keys(target, values | arguments, key, partial=bool(node.get("_partial_")))
    for name in values.keys() & arguments.keys():
        raise ConfigError(f"{key}.{name} cannot be given: it follows from other parts of the config")
    built = Configured(target, check_values(target, values, key) | arguments, key)
    return built if node.get("_partial_") else built()


def _built(value: Any, key: str, allowed: tuple[str, ...]) -> Any:
    """Build the nodes within a value, in lists and mappings too."""
    if isinstance(value, list):
        return [_built(item, f"{key}.{i}", allowed) for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if "_target_" in value:
        return instantiate(value, key, allowed)
    return {name: _built(item, f"{key}.{name}", allowed) for name, item in value.items()}


class Configured:
    """A class or function with its configured arguments: waits for the rest, and names the key when it refuses."""

    def __init__(self, target: Any, values: Mapping[str, Any], key: str) -> None:
        self.func, self.keywords, self.key = target, dict(values), key

    def with_known(self, arguments: Mapping[str, Any]) -> Any:
        """Call the target with those of ``arguments`` that it has."""
        parameters = inspect.signature(self.func).parameters
        return self(**{name: value for name, value in arguments.items() if name in parameters})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the target with the configured and the given arguments."""
        try:
            return self.func(*args, **{**self.keywords, **kwargs})
        except ConfigError:
            raise
        except (ValueError, TypeError, MisconfigurationException) as error:
            raise ConfigError(f"{self.key}: {error}") from error


def locate(node: Mapping[str, Any], key: str, allowed: tuple[str, ...]) -> Any:
    """Return the class or function that ``_target_`` names, if its place in the config may hold it."""
    name = node.get("_target_")
    if not isinstance(name, str):
        raise ConfigError(f"{key}._target_ must name a class or function, given {name!r}")
    message = f"{key}._target_: {name!r} is not allowed here; it must be a class or function of {', '.join(allowed)}"
    # checked before importing, which runs code, and after: attributes of a module lead anywhere
    if not _belongs(name, allowed):
        raise ConfigError(message)
    try:
        target = hydra.utils.get_object(name)
    except (HydraException, ValueError, ImportError) as error:
        raise ConfigError(f"{key}._target_: there is no {name!r} ({error})") from error
    if not callable(target) or not _belongs(f"{getattr(target, '__module__', '')}.", allowed):
        raise ConfigError(message)
    return target


def _plain_hint(hint: Any) -> Any:
    """Return the part of an annotation that plain values can be checked against; None where there is none."""
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        kept = [part for part in get_args(hint) if part is type(None) or _plain_hint(part) is not None]
        return Union[tuple(kept)] if kept else None  # noqa: UP007
    try:
        TypeAdapter(hint)
    except PydanticUserError:
        return None
    return hint


def _belongs(name: str, allowed: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed)


def check_keys(target: Any, values: Mapping[str, Any], key: str, partial: bool) -> None:
    """Refuse keys that the target does not have, and miss those that it needs."""
    parameters = inspect.signature(target).parameters
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
    function = target.__init__ if inspect.isclass(target) else target
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        return dict(values)
    return {name: _checked(value, hints.get(name, Any), f"{key}.{name}") for name, value in values.items()}


def _checked(value: Any, hint: Any, key: str) -> Any:
    """Check plain values; objects, and types that no plain value has, are their owner's to check."""
    hint = _plain_hint(hint)
    if hint is None or not isinstance(value, bool | int | float | str | list | dict | None):
        return value
    _refuse_no_number(value, hint, key)
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{key}: {error.errors()[0]['msg']}, given {value!r}") from error


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
