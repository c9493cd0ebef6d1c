"""The overrides of a command line: what is done to them before Hydra composes, and what they name."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from asr.errors import ConfigError
from asr.quoting import quoted

MULTIRUN = ("-m", "--multirun")
# of Hydra: those that take a value, and those that do not
VALUE_FLAGS = (
    *("cfg", "package", "config-path", "config-name", "config-dir", "experimental-rerun", "info"),
    *("cp", "cn", "cd"),
)
FLAGS = ("help", "hydra-help", "version", "resolve", "run", "multirun", "shell-completion", "sc")
ADDED = ("command-line", "hydra.searchpath in command-line")  # how Hydra names who has added a folder of configs

QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
# a value, or one of several, after the key: in quotes, or up to what separates values
TO_QUOTE = re.compile(rf"""(?<=[=,\[(])(?:{QUOTED.pattern}|[^\s,\[\]()='"\\][^,\[\]()='"\\]*)""")


def override_key(word: str) -> str:
    """Return the key of an override."""
    return word.lstrip("+~").partition("=")[0]


def override_value(words: Iterable[str], key: str) -> object:
    """Return the last value that overrides give to a key; None if they do not name the key."""
    found = [word for word in words if word.startswith(f"{key}=")]
    return OverridesParser.create().parse_overrides(found)[-1].value() if found else None


def refuse_dashes(words: Iterable[str]) -> None:
    """Refuse an option with dashes, of which Hydra would only say that it does not know it.

    Raises:
        ConfigError: names the option without them.
    """
    for word in words:
        key, equals, value = word.lstrip("-").partition("=")
        known = VALUE_FLAGS if equals else VALUE_FLAGS + FLAGS
        # argparse takes the beginning of a flag for it
        if word.startswith("-") and not any(flag.startswith(key) for flag in known):
            raise ConfigError(f"{word}: options are given without dashes: {key}={value if equals else '…'}")


def expand_short_forms(word: str) -> str:
    """Replace ``init=PATH`` by ``init.path=PATH``, and ``data.storage`` likewise; a mapping of options stays."""
    for key, option in (("init", "path"), (r"data\.storage", "kind")):
        word = re.sub(rf"^(\+{{0,2}}{key})=(?!\s*\{{)", rf"\1.{option}=", word)
    return word


def quote_non_ascii(word: str) -> str:
    """Quote values with letters that Hydra's grammar lacks, ``ö`` and ``語`` among them: names of files have such.

    Values in quotes stay as they are, and so do flags, and whole words with braces, which may hold keys.
    """
    return word if "{" in word or word.startswith("-") else TO_QUOTE.sub(_in_quotes, word)


def _in_quotes(found: re.Match[str]) -> str:
    value = found[0]
    foreign = any(not char.isascii() and not char.isspace() and char.isprintable() for char in value)
    return f"'{value}'" if foreign and not QUOTED.fullmatch(value) else value


def name_sweep(words: Sequence[str]) -> list[str]:
    """Name a multirun by its time unless the user has named it, so that all its processes know it by one name.

    Puts ``-m`` first too: argparse does not understand it between overrides.
    """
    overrides = [word for word in words if word not in MULTIRUN]
    if len(overrides) == len(words):
        return overrides
    if not any(override_key(word) == "sweep.name" for word in overrides):
        overrides.append(f"sweep.name={datetime.datetime.now():%Y-%m-%d_%H-%M-%S}")
    return ["-m", *overrides]


def added_config_folders(sources: Sequence[Any]) -> list[str]:
    """Return the override that another process of this program needs to find the configs of ``--config-dir``.

    Args:
        sources: ``hydra.runtime.config_sources``.
    """
    folders = [quoted(f"{source.schema}://{source.path}") for source in sources if source.provider in ADDED]
    return [f"hydra.searchpath=[{','.join(folders)}]"] if folders else []
