"""Classes of other packages: the user's own are built as named, those in files of strangers if the user trusts them.

Needs no torch: what a command says about an error asks this too.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from asr.run.options import Section
from werdict.errors import ConfigError, RunFailed, is_out_of_memory
from werdict.files import is_within, trust, trusted

OURS = ("asr", "optim", "werdict", "torch", "lightning")  # what they refuse is shown as a message
# what a restored config may build: the places of its keys, and where classes for them are defined
RESTORED = {
    "encoder": ("asr.models", "torch.nn"),
    "head": ("asr.models", "torch.nn"),
    "decoder": ("asr.decoding",),
    "features": ("asr.data.features",),
    "tokenizer": ("asr.text",),
    "augment": ("asr.data.loading", "asr.features"),
    "data": ("asr.data", "asr.text", "werdict.normalization"),
    "data.prepare": ("asr.recipes",),
    "data.sources": ("asr.recipes",),
    "optimizer": ("optim", "torch.optim"),
    "parameter_rules": ("optim", "torch.optim"),
    "schedule": ("optim", "torch.optim"),
    "trainer": (
        "lightning.pytorch.trainer",
        "lightning.pytorch.strategies.ddp",
        "lightning.pytorch.strategies.single_device",
        "lightning.fabric.plugins.environments",
    ),
    "callbacks": ("asr.training.callbacks", "lightning.pytorch.callbacks", "optim.health"),
    "logger": ("asr.tracking", "lightning.pytorch.loggers.tensorboard", "lightning.pytorch.loggers.csv_logs"),
}


def is_third_party(target: Any) -> bool:
    """Return whether a class, a function, or what a dotted name names, is of another package than ours and torch's."""
    name = target if isinstance(target, str) else str(getattr(target, "__module__", ""))
    return not is_within(name, OURS)


def trust_own(options: Section | Mapping[str, Any]) -> None:
    """Trust what the user's own options name, where this program goes on: ranks, jobs, decoding, resumption."""
    trust([_package(node["_target_"]) for key, node in targets(options) if _refused(key, node)])


def check_restored(parts: Mapping[str, Any], source: object, before: Mapping[str, Any] | None = None) -> None:
    """Refuse a stranger's options that would run code of packages that the user does not trust; imports none of them.

    Args:
        parts: options by key, of a checkpoint, or of a run folder with what the user has set since.
        source: of the options, for the message.
        before: as the run folder has them; what differs is the user's own word. None: the same.

    Raises:
        ConfigError: names the key, and how to trust the package.
    """
    saved_targets = {(key, str(node["_target_"])) for key, node in targets(parts if before is None else before)}
    refused = [
        (key, str(node["_target_"]), why)
        for key, node in targets(parts)
        if (key, str(node["_target_"])) in saved_targets and (why := _refused(key, node))
    ]
    if refused:
        key, name, why = refused[0]
        packages = dict.fromkeys([*trusted(), *(_package(name) for _, name, _ in refused)])
        raise ConfigError(
            f"{source}: {key}._target_: {name!r} {why}; if you trust that code, add trust=[{','.join(packages)}]"
        )


def targets(node: Any, key: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the mappings with ``_target_`` in options, or plain data, outer ones first, with their dotted keys."""
    if isinstance(node, Section):
        node = node.plain()
    if isinstance(node, Mapping) and "_target_" in node:
        yield key, node
    if isinstance(node, Mapping | list):
        for name, item in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from targets(item, f"{key}.{name}" if key else str(name))


def _package(name: object) -> str:
    """Return what has to be trusted for a class: its package, or its module if the package is ours."""
    return str(name).rpartition(".")[0] if not is_third_party(str(name)) else str(name).partition(".")[0]


def _refused(key: str, node: Mapping[str, Any]) -> str:
    """Return why a restored config may not build a node; empty if it may."""
    name = node["_target_"]
    if not isinstance(name, str):
        return "is not the name of a class"
    names = key.split(".")
    places = (".".join(names[:end]) for end in range(len(names), 0, -1))
    place = next((place for place in places if place in RESTORED), "")
    allowed = (*RESTORED.get(place, ()), *trusted())
    if not is_within(name, (*OURS, *trusted())):
        return "belongs to another package"
    module, _, attribute = name.rpartition(".")
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        return ""  # of our packages, in which there is no such code, such as a recipe of a recipes_dir
    defined_in = str(getattr(target, "__module__", ""))
    if not is_within(defined_in, allowed):
        return f"is not defined in {' or '.join(allowed)}"
    if is_within(defined_in, trusted()):
        return ""
    if inspect.isclass(target):
        return _leads_elsewhere(node) if defined_in.startswith("lightning.") else ""
    is_builder = inspect.isfunction(target) and (
        is_within(defined_in, ["optim"]) or (place.startswith("data.") and attribute.startswith("prepare_"))
    )
    return "" if is_builder else "is not a class"


def _leads_elsewhere(node: Mapping[str, Any]) -> str:
    """Return which option of a class of Lightning's could write, or send, outside of the run's folder."""
    for name, value in node.items():
        if isinstance(value, str) and (value.startswith(("/", "~")) or ".." in value or "://" in value):
            return f"has {name}={value}, a place outside of the run's folder"
    return ""


@contextlib.contextmanager
def error_context(key: str, target: Any) -> Iterator[None]:
    """Name the part of the config in an error: in a message of ours, after the traceback of other people's code.

    Raises:
        ConfigError: a class of ours, torch's or Lightning's refuses its options.
    """
    try:
        yield
    except (ConfigError, RunFailed, OSError):
        raise
    except Exception as error:
        # torch asserts, divides by zero, and raises RuntimeError where options do not fit
        refuses = isinstance(
            error, ValueError | TypeError | ImportError | ArithmeticError | AssertionError | RuntimeError
        )
        is_refusal = refuses or type(error).__name__ == "MisconfigurationException"  # Lightning's
        if is_refusal and not is_third_party(target) and not is_out_of_memory(error):
            raise ConfigError(f"{key}: {error}") from error
        if not is_out_of_memory(error):
            error.add_note(f"raised in {key}: {getattr(target, '__qualname__', target)}")
        raise


def name_origin(error: Exception, config: Any) -> None:
    """Add to an error of other people's code which part of the config it comes from."""
    frames = _modules(error)
    for key, node in targets(config):
        name = str(node["_target_"])
        package = [name.partition(".")[0]]
        if (
            is_third_party(name)
            and not hasattr(error, "__notes__")
            and any(is_within(frame, package) for frame in frames)
        ):
            error.add_note(f"raised in {key}: {name}")


def is_raised_by_us(error: BaseException) -> bool:
    """Return whether our own code has raised an error, whose text is then meant for the user."""
    return is_within(_modules(error)[-1], ("asr", "optim", "werdict", "hydra_plugins"))


def is_of_third_party_code(error: BaseException) -> bool:
    """Return whether code of a package that the user has named was at work when an error was raised."""
    packages = [name for name in trusted() if is_third_party(name)]
    return any(is_within(module, packages) for module in _modules(error))


def _modules(error: BaseException) -> list[str]:
    modules, trace = [], error.__traceback__
    while trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    return modules
