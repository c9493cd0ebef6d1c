"""Nodes of a config → objects, whose keys and values are checked against signatures before anything is built."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import types
from collections.abc import Collection, Mapping
from typing import Any, Union, Unpack, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from asr.former_names import PRESENT
from asr.run.options import Target
from asr.run.trust import error_context
from werdict.errors import ConfigError, did_you_mean
from werdict.files import is_within

SPECIAL_KEYS = {"_target_", "_partial_", "_convert_"}
PASSED = ("self", "params", "named_parameters")  # arguments that no config gives
DECLARED = ("optim", "torch.optim")  # packages whose signatures declare every option with its type and default


def locate(name: object, key: str) -> Any:
    """Return the class or function that ``_target_`` names; an error in its module keeps its traceback.

    Raises:
        ConfigError: no such class or function is found.
    """
    if not isinstance(name, str) or name == "???":  # the empty choice own
        raise ConfigError(f"{key}._target_ must be the name of a class, given {name!r}")
    module, _, attribute = PRESENT.get(name, name).rpartition(".")
    try:
        imported = importlib.import_module(module)
        if hasattr(imported, attribute):
            return getattr(imported, attribute)
        problem = f"the module {module} has no such name.{did_you_mean(attribute, vars(imported))}"
    except (ModuleNotFoundError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not is_within(module, [str(error.name)]):
            raise  # of an import in that module
        problem = f"{error}."
    raise ConfigError(
        f"{key}._target_: {name!r} is not found: {problem} Your own package must be on PYTHONPATH, or installed, as by "
        "pip install -e"
    )


def instantiate(node: Mapping[str, Any], key: str, **arguments: Any) -> Any:
    """Build the object that a config node describes.

    Args:
        node: resolved plain config with ``_target_``; nested nodes are built first.
        key: where the node stands in the config.
        arguments: what the program itself passes on, beside the configured values.

    Returns:
        The object, or a `Configured` that waits for more arguments if the node has ``_partial_: true``.

    Raises:
        ConfigError: an unknown or missing key, or a value that is refused.
    """
    target, partial = locate(node.get("_target_"), key), bool(node.get("_partial_"))
    values = {name: _built(value, f"{key}.{name}") for name, value in node.items() if name not in SPECIAL_KEYS}
    check_keys(target, values | arguments, key, partial)
    for name in values.keys() & arguments.keys():
        raise ConfigError(f"{key}.{name} cannot be given: it follows from other parts of the config")
    built = Configured(target, check_values(target, values, key) | arguments, key)
    return built if partial else built()


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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the target with the configured and the given arguments."""
        with error_context(self.key, self.func):
            return self.func(*args, **{**self.keywords, **kwargs})


@functools.cache
def parameters_of(target: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class or function, with the types that their annotations name.

    ``**options: Unpack[SomeTypedDict]`` counts as the dict's keys. An annotation that cannot be evaluated is None.
    """
    try:
        parameters = dict(inspect.signature(target).parameters)
    except ValueError:  # of a builtin, which takes what it takes
        return {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}
    try:
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}
    for name, hint in list(hints.items()):
        if get_origin(hint) is Unpack:
            unpacked = get_type_hints(get_args(hint)[0], include_extras=True)
            hints |= unpacked
            if parameters.pop(name, None) is not None:  # else the signature has them already
                parameters |= {
                    key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in unpacked
                }
    return {name: parameter.replace(annotation=hints.get(name)) for name, parameter in parameters.items()}


def with_defaults(node: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an optimizer or schedule with the options that the config leaves to its class, at the class's defaults.

    Runs are recorded, compared and resumed with them, so that a later default of the class changes no earlier run.
    A class of another package keeps what is given.
    """
    whole, name = dict(node), str(node.get("_target_"))
    target = locate(name, key) if is_within(name, DECLARED) else None
    for option in parameters_of(target).values() if callable(target) else ():
        value = list(option.default) if isinstance(option.default, tuple) else option.default
        # without a rate in the config, a run says that it has the class's own
        if option.name != "lr" and isinstance(value, bool | int | float | str | list | None):
            whole.setdefault(option.name, value)
    return whole


def takes(target: Any, name: str) -> bool:
    """Return whether a class or function has an option of this name, or takes any."""
    parameters = parameters_of(target)
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def check_keys(target: Any, values: Collection[str], key: str, partial: bool) -> None:
    """Refuse keys that the target does not have, and miss those that it needs."""
    parameters = parameters_of(target)
    for name in values:
        if not takes(target, name):
            allowed = [p for p in parameters if p not in PASSED]
            raise ConfigError(
                f"{key}.{name}: {target.__qualname__} has no such option.{did_you_mean(name, allowed)} "
                f"Allowed: {', '.join(allowed) or 'none, it has no options'}."
            )
    named = [(name, p) for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [name for name, p in named if p.default is p.empty and name not in values]
    if missing and not partial:
        raise ConfigError(f"{key}: {', '.join(missing)} must be given")


def check_values(target: Any, values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the values converted to the annotated types; refuse those that do not fit."""
    hints = {name: parameter.annotation for name, parameter in parameters_of(target).items()}
    return {name: _checked(value, hints.get(name), f"{key}.{name}") for name, value in values.items()}


def _checked(value: Any, hint: Any, key: str) -> Any:
    """Check plain values; objects, and types that no plain value has, are their owner's to check."""
    hint = _plain_hint(hint)
    try:
        text = json.dumps(value)
    except TypeError:
        return value
    if hint in (None, Any):
        return value
    try:
        # of JSON strict checks take a list for a tuple, but neither a text nor true for a number
        return TypeAdapter(hint).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        fixed = next((kind for kind in options if get_origin(kind) is tuple and Ellipsis not in get_args(kind)), None)
        if fixed and first["type"] in ("missing", "too_long", "tuple_type"):  # in words about fields and tuples
            raise ConfigError(f"{key}: a list of {len(get_args(fixed))} values is needed, given {value!r}") from error
        place = "".join(f".{item}" for item in first["loc"] if isinstance(item, int))
        raise ConfigError(f"{key}{place}: {first['msg']}, given {value!r}") from error


def _plain_hint(hint: Any) -> Any:
    """Return the part of an annotation that plain values can be checked against; None if it has no such part."""
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        checkable = [part for part in get_args(hint) if part is type(None) or _plain_hint(part) is not None]
        return Union[tuple(checkable)] if checkable else None  # noqa: UP007
    if get_origin(hint) is tuple and Ellipsis not in get_args(hint):
        plain = [_plain_hint(part) for part in get_args(hint)]
        return None if None in plain else tuple[tuple(plain)]  # type: ignore[misc]
    try:
        TypeAdapter(hint)
    except PydanticUserError:
        return None
    return hint


def build_component(target: Target | None, key: str, partial: bool = False, **arguments: Any) -> Any:
    """Build what the choice of a group describes.

    Args:
        target: class or function, and its arguments.
        key: where they stand in the config.
        partial: return a `Configured` that waits for more arguments.
        arguments: what the program itself passes on.

    Raises:
        ConfigError: nothing is chosen, or what is chosen is refused.
    """
    if target is None:
        raise ConfigError(f"{key} is missing in the config, or null")
    return instantiate({**target.plain(), "_partial_": partial}, key, **arguments)
