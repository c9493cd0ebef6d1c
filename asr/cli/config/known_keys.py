"""Refuses keys that nothing would read: who adds one with ``+``, or writes one into a recipe, expects an effect.

What a ``_target_`` builds knows its own options; the other mappings of a config are listed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from asr.cli.errors import ConfigError, did_you_mean
from asr.nested import leaves

# where the keys of a mapping are those of a file
FILES = {"data": "data/default.yaml", "augment": "augment/none.yaml"}
OWN = ("scoring",)  # mappings that stand in the file of a command
CLOSED = ("", *FILES, *OWN)  # places to which nothing can be added
HYDRA = ("defaults", "hydra")


def check_known(command: str, folder: Path, config: DictConfig) -> None:
    """Refuse a key that nothing reads, unless another value refers to it.

    Args:
        command: whose config it is.
        folder: of the configs.
        config: composed.

    Raises:
        ConfigError: names the key and what is allowed.
    """
    given = OmegaConf.to_container(config, resolve=False)
    assert isinstance(given, Mapping)
    top = _top(command, folder)
    allowed = {"": [*top], **{place: [*_read(folder / file)] for place, file in FILES.items() if place in top}}
    allowed |= {place: [*top[place]] for place in OWN if place in top}
    unknown = [(place, key) for place, keys in allowed.items() for key in _keys(given, place) if key not in keys]
    referred = set(_referred(given)) if unknown else set()
    for place, key in unknown:
        if key not in referred:
            name, where = (f"{place}.{key}", f"in {place}") if place else (key, "at the top level")
            raise ConfigError(
                f"{name}: there is no key {key!r} {where}, and nothing would read one."
                f"{did_you_mean(key, allowed[place])} Allowed: {', '.join(allowed[place])}."
            )


def _keys(given: Mapping[Any, Any], place: str) -> list[str]:
    node = given.get(place) if place else given
    return [*map(str, node)] if isinstance(node, Mapping) else []


def _top(command: str, folder: Path) -> dict[str, Any]:
    """Return the keys of a command's config, groups among them, with their values in the command's own file."""
    own = _read(folder / f"{command}.yaml")
    found: dict[str, Any] = {}
    for item in own.get("defaults", ()):
        if isinstance(item, str):
            found |= {} if item == "_self_" else _top(item, folder)
        else:
            found |= {group: None for group in item if " " not in group and group != "recipe"}
    return found | {key: value for key, value in own.items() if key not in HYDRA}


def _read(file: Path) -> dict[str, Any]:
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert isinstance(found, dict), file
    return found


def _referred(config: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the parts of all keys that values refer to."""
    for _, value in leaves(config):
        for reference in re.findall(r"\$\{([^}]*)\}", value) if isinstance(value, str) else ():
            yield from re.findall(r"\w+", reference)
