"""The overrides of a command line: how they are read, and changed before Hydra composes."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from asr.errors import ConfigError
from asr.run_folder import quoted
from asr.safe_io import named_path

MULTIRUN = ("-m", "--multirun")
# of Hydra: those that take a value, and those that do not
VALUE_FLAGS = (
    *("cfg", "package", "config-path", "config-name", "config-dir", "experimental-rerun", "info"),
    *("cp", "cn", "cd"),
)
FLAGS = ("help", "hydra-help", "version", "resolve", "run", "multirun", "shell-completion", "sc")
# keys that arguments without = set, in order, skipping keys given as KEY=VALUE; the last key takes all that follow
WORDS: Mapping[str, tuple[str, ...]] = {
    "evaluate": ("run", "manifest"),
    "transcribe": ("run", "audio"),
    "align": ("run", "manifest"),
    "lm": ("run", "text"),
    "stream": ("run", "audio"),
    "demo": ("run",),
    "convert": ("model", "bpe_model", "output"),
    "export": ("run", "output"),
    "compare": ("runs",),
    "runs": ("folder",),
}
ADDED = ("command-line", "hydra.searchpath in command-line")  # how Hydra names who has added a folder of configs

QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
# a value, or one of several, after the key: in quotes, or up to what separates values
TO_QUOTE = re.compile(rf"""(?<=[=,\[(])(?:{QUOTED.pattern}|[^\s,\[\]()='"\\][^,\[\]()='"\\]*)""")
# what is in quotes, or where a value begins with ~ or ~user, as a shell expands it in a word of its own
HOME = re.compile(rf"""{QUOTED.pattern}|(?<=[=,:\[( ])~[\w.-]*(?=[/,\]}})]|$)""")
DELETION = re.compile(r"~[a-z][\w./@]*")


def override_key(word: str) -> str:
    """Return the key of an override."""
    return word.lstrip("+~").partition("=")[0]


def override_value(overrides: Iterable[str], key: str) -> object:
    """Return the value that the last override of a key gives; None if the key is not overridden."""
    matching = [word for word in overrides if word.startswith(f"{key}=")]
    return OverridesParser.create().parse_overrides(matching)[-1].value() if matching else None


def fill_keys(command: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line; those without ``=`` become overrides of the keys that ``WORDS`` lists.

    The name of an existing file may contain ``=``, for example from a pattern that the shell has expanded.

    Raises:
        ConfigError: all keys that arguments without ``=`` may fill are given as KEY=VALUE.
    """
    if command not in WORDS:
        return [*arguments]
    options: list[str] = []
    plain: list[str] = []
    place = 0  # of the first one without =, because argparse wants all overrides together
    of_flag = False  # whether the argument is the value of the flag before it
    for word in arguments:
        is_flag, is_override = re.match("-+[a-z]", word), "=" in word and not os.path.lexists(word)
        if of_flag or is_flag or is_override or DELETION.fullmatch(word):
            options.append(word)
        else:
            place = place if plain else len(options)
            plain.append(word)
        of_flag = bool(is_flag) and any(flag.startswith(word.lstrip("-")) for flag in VALUE_FLAGS)
    if not plain:
        return options
    given_keys = {override_key(word) for word in options}
    if not (free := [key for key in WORDS[command] if key not in given_keys]):
        raise ConfigError(
            f"{plain[0]}: words without = are {', then '.join(WORDS[command])}, which are already given as KEY=VALUE"
        )
    *first, last = free[: len(plain)]
    rest = [quoted(word) for word in plain[len(first) :]]
    filled = [f"{key}={quoted(word)}" for key, word in zip(first, plain, strict=False)]
    filled.append(f"{last}={rest[0]}" if len(rest) == 1 else f"{last}=[{','.join(rest)}]")
    return [*options[:place], *filled, *options[place:]]


def refuse_dashes(arguments: Iterable[str]) -> None:
    """Refuse an option with dashes, with a clearer message than Hydra's.

    Raises:
        ConfigError: names the option without them.
    """
    for word in arguments:
        key, equals, value = word.lstrip("-").partition("=")
        flags = VALUE_FLAGS if equals else VALUE_FLAGS + FLAGS
        # argparse accepts abbreviated flags
        if word.startswith("-") and not any(flag.startswith(key) for flag in flags):
            raise ConfigError(f"{word}: options are given without dashes: {key}={value if equals else '…'}")


def expand_short_forms(word: str) -> str:
    """Replace ``init=PATH`` by ``init.path=PATH``, and ``data.storage`` likewise; a mapping of options stays."""
    for key, option in (("init", "path"), (r"data\.storage", "kind")):
        word = re.sub(rf"^(\+{{0,2}}{key})=(?!\s*\{{)", rf"\1.{option}=", word)
    # braces are mappings in Hydra's grammar
    return re.sub(r"^(pattern|references)=([^'\"].*)$", lambda match: f"{match[1]}={quoted(match[2])}", word)


def expand_home(word: str) -> str:
    """Expand ``~`` and ``~user`` where a value begins with it: shells do so in few words with ``=``.

    Raises:
        ValueError: there is no such user.
    """
    if word.startswith("-"):
        return word
    return HOME.sub(lambda match: str(named_path(match[0])) if match[0].startswith("~") else match[0], word)


def quote_non_ascii(word: str) -> str:
    """Quote values with letters that Hydra's grammar lacks, ``ö`` and ``語`` among them: names of files have such.

    Values in quotes stay as they are, and so do flags, and whole words with braces, which may hold keys.
    """
    return word if "{" in word or word.startswith("-") else TO_QUOTE.sub(_in_quotes, word)


def _in_quotes(match: re.Match[str]) -> str:
    value = match[0]
    foreign = any(not char.isascii() and not char.isspace() and char.isprintable() for char in value)
    return f"'{value}'" if foreign and not QUOTED.fullmatch(value) else value


def name_sweep(arguments: Sequence[str]) -> list[str]:
    """Name a multirun by the current time unless the user has named it, so that all its processes use the same name.

    Puts ``-m`` first too: argparse does not understand it between overrides.
    """
    overrides = [word for word in arguments if word not in MULTIRUN]
    if len(overrides) == len(arguments):
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
