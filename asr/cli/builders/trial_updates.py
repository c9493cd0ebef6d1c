"""Trial updates: options that torch's optimizers and schedules only refuse when they are used fail before any work."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from asr.cli.builders.instantiate import Configured, check_values, instantiate
from asr.cli.builders.parts import part
from asr.cli.errors import ConfigError
from asr.error_text import first_line, is_out_of_memory

NUM_TRIED = 20_000  # updates of a schedule, in some tenths of a second
NO_OPTIONS = ("pattern", "lr_scale", "optimizer")  # keys of a parameter rule that are no options of an optimizer


def try_optimizers(config: Mapping[str, Any], on_cpu: bool) -> None:
    """Update a small parameter with torch's own optimizers, which do not check the options of parameter groups.

    Args:
        config: of a run, whose optimizer has been built.
        on_cpu: whether the run trains on a CPU.

    Raises:
        ConfigError: names the option that is refused, or the optimizer that cannot make an update.
    """
    optimizer = part(config, "optimizer")
    _try(optimizer, {}, optimizer.keywords, "optimizer", on_cpu)
    for place, rule in enumerate(config["parameter_rules"].get("rules") or ()):
        key, factory = f"parameter_rules.rules.{place}", optimizer
        if "optimizer" in rule:
            factory = instantiate(rule["optimizer"], f"{key}.optimizer")
            _try(factory, {}, factory.keywords, f"{key}.optimizer", on_cpu)
        options = {name: value for name, value in rule.items() if name not in NO_OPTIONS}
        _try(factory, factory.keywords, options, key, on_cpu)


def _try(factory: Configured, base: Mapping[str, Any], options: Mapping[str, Any], key: str, on_cpu: bool) -> None:
    target = factory.func
    # optimizers of `optim` check the options of every group themselves
    if not target.__module__.startswith("torch.optim."):
        return
    known = {name: value for name, value in options.items() if name in inspect.signature(target).parameters}
    for name, value in check_values(target, known, key).items():
        if isinstance(value, bool) != isinstance(known[name], bool):
            raise ConfigError(f"{key}.{name} must be true or false, given {known[name]!r}")
    error = _error_of(target, {**base, **known}, on_cpu)
    if error is None:
        return
    without = {name: {other: known[other] for other in known if other != name} for name in known}
    blamed = (name for name, rest in without.items() if _error_of(target, {**base, **rest}, on_cpu) is None)
    where = next((f"{key}.{name}={known[name]}" for name in blamed), key)
    raise ConfigError(f"{where}: {target.__name__} cannot make an update: {first_line(error)}") from error


def _error_of(target: Any, options: Mapping[str, Any], on_cpu: bool) -> Exception | None:
    parameter = nn.Parameter(torch.ones(2, 2))
    parameter.grad = torch.ones(2, 2)
    # only a GPU can do it, and this parameter is on none
    elsewhere = {} if on_cpu or "capturable" not in options else {"capturable": False}
    try:
        # LBFGS needs a closure
        target([parameter], **{**options, **elsewhere}).step(lambda: 0.0)
    except Exception as error:  # torch raises anything, also AssertionError
        if is_out_of_memory(error):
            raise
        return error
    return None


def try_schedule(schedule: LRScheduler, num_updates: int | None) -> None:
    """Step to the first updates, and to the last: some schedules fail only then; the schedule cannot be used again.

    Args:
        schedule: of an optimizer that is not used.
        num_updates: of the run, if known.

    Raises:
        ConfigError: the schedule cannot make the step.
    """
    known = num_updates or 1
    for last in (*range(min(known, NUM_TRIED)), known - 1):
        schedule.last_epoch = last
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch misses updates of the optimizer
                schedule.step()
        except Exception as error:  # such as a division by zero
            name = type(schedule).__name__
            raise ConfigError(f"schedule: {name} fails after update {last + 1}: {first_line(error)}") from error
