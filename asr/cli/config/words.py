"""The words of a command line, checked before Hydra composes with them: bounds, keys, choices, sweeps, places."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep

import asr.recipes
from asr.cli.config.explanations import explain_choice
from asr.cli.config.help import choices
from asr.cli.errors import ConfigError
from asr.quoting import quoted

MAX_WORDS = 2000
MAX_WORD = 50_000  # characters; a list of some hundred files has as many
MAX_KEY = 200
MAX_NESTED = 50  # Hydra's parser calls itself for each
MAX_SWEPT = 10_000  # values of one key
# flags of Hydra that a value follows
WITH_VALUE = (
    *("-c", "--cfg", "-p", "--package", "-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir"),
    "--experimental-rerun",
)
SEVERAL = ("logger", "callbacks")  # groups of which a run may have several choices at once
SEARCHPATH = "hydra.searchpath="
ADDED = ("command-line", "hydra.searchpath in command-line")  # how Hydra names who has added a folder of configs

QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
# a value, or one of several, after the key: in quotes, or up to what separates values
TO_QUOTE = re.compile(rf"""(?<=[=,\[(])(?:{QUOTED.pattern}|[^\s,\[\]()='"\\][^,\[\]()='"\\]*)""")


def check_bounds(words: Sequence[str]) -> None:
    """Refuse words that would take minutes to parse, or overflow the stack.

    Raises:
        ConfigError: names the word, shortened, and the bound.
    """
    if len(words) > MAX_WORDS:
        raise ConfigError(f"the command line has {len(words)} words; at most {MAX_WORDS} are read")
    for word in words:
        key = word.partition("=")[0]
        if len(key) > MAX_KEY:
            raise ConfigError(f"{key[:50]}…: a key of {len(key)} characters; at most {MAX_KEY} are read")
        if len(word) > MAX_WORD:
            raise ConfigError(f"{key}: a value of {len(word) - len(key) - 1} characters; at most {MAX_WORD} are read")
        depth = 0
        for mark in re.findall(r"[\[({\])}]", word):
            depth += 1 if mark in "[({" else -1
            if depth > MAX_NESTED:
                raise ConfigError(f"{key}: the value is nested deeper than {MAX_NESTED}")


def override_key(word: str) -> str:
    """Return the key of an override as it was typed."""
    return word.lstrip("+~").partition("=")[0]


def flags_first(argv: list[str]) -> None:
    """Move flags, and their values, in front of overrides: argparse reads overrides from one piece of the line only."""
    flags, words = [], []
    rest = list(reversed(argv[1:]))
    while rest:
        word = rest.pop()
        if not word.startswith("-"):
            words.append(word)
            continue
        flags.append(word)
        if word == "-i" or (len(word) > 3 and "--info".startswith(word)):
            # its value may be left out; argparse would then take an override for it
            given = bool(rest) and not re.match(r"[-+~]|[^=]*=", rest[-1])
            flags[-1] = f"--info={rest.pop() if given else 'all'}"
        elif rest and (word in WITH_VALUE or any(len(word) > 3 and flag.startswith(word) for flag in WITH_VALUE)):
            flags.append(rest.pop())
    argv[1:] = [*flags, *words]


def expand_shorthands(argv: list[str]) -> None:
    """Replace ``init=PATH`` by ``init.path=PATH``, and ``data.storage`` likewise; a mapping of options stays."""
    for key, option in (("init", "path"), (r"data\.storage", "kind")):
        argv[1:] = [re.sub(rf"^(\+{{0,2}}{key})=(?!\s*\{{)", rf"\1.{option}=", word) for word in argv[1:]]


def quote_non_ascii(argv: list[str]) -> None:
    """Quote values with letters that Hydra's grammar lacks, ``ö`` and ``語`` among them: names of files have such.

    Values in quotes stay as they are, and so do whole words with braces, which may hold keys.
    """
    argv[1:] = [word if "{" in word else TO_QUOTE.sub(_in_quotes, word) for word in argv[1:]]


def _in_quotes(found: re.Match[str]) -> str:
    value = found[0]
    foreign = any(not char.isascii() and not char.isspace() and char.isprintable() for char in value)
    return f"'{value}'" if foreign and not QUOTED.fullmatch(value) else value


def name_sweep(argv: list[str]) -> None:
    """Name a multirun by its time unless the user has named it, so that all its processes know it by one name.

    Puts ``-m`` first too: Hydra does not understand it between overrides.
    """
    words = [word for word in argv[1:] if word not in ("-m", "--multirun")]
    if len(words) == len(argv) - 1:
        return
    if not any(override_key(word) == "sweep.name" for word in words):
        words.append(f"sweep.name={datetime.datetime.now():%Y-%m-%d_%H-%M-%S}")
    argv[1:] = ["-m", *words]


def check_words(words: Sequence[str], folder: Path, removable: Collection[str] = ()) -> None:
    """Refuse a word without a key, and one that chooses nothing, or no file, where one file of a group is chosen.

    Args:
        words: overrides of the command line.
        folder: of the configs.
        removable: groups of which nothing may be chosen.

    Raises:
        ConfigError: names the word and what is allowed.
    """
    for override in OverridesParser.create().parse_overrides(list(words)):
        if not override.key_or_group:
            raise ConfigError(f"{override.input_line!r} names no key")
        key = override.key_or_group
        known = list(choices(folder, key)) if "." not in key and (folder / key).is_dir() else []
        if override.is_delete():
            if key.partition(".")[0].partition("/")[0] == "hydra":
                raise ConfigError(f"{override.input_line}: what Hydra needs cannot be removed; leave the word out")
            if known and key not in removable:
                raise ConfigError(
                    f"~{key}: {key} is missing then, which this command needs; {key}=… replaces it by another choice. "
                    f"Allowed: {', '.join(known)}."
                )
            continue
        if override.is_sweep_override():
            _check_sweep(override, words)
            continue
        value = override.value()
        names = value if isinstance(value, list) else [value]
        # none may lead out of the folders of configs
        if not all(
            isinstance(name, str) and len(name) <= MAX_KEY and name[:1] != "/" and ".." not in name.split("/")
            for name in names
        ):
            explained = explain_choice(key, "null" if value is None else str(value), folder)
            if explained:
                raise ConfigError(explained)
        elif isinstance(value, list) and len(value) != 1 and known and key not in SEVERAL:
            swept = f"-m {key}={','.join(map(str, names)) or 'A,B'}"
            raise ConfigError(f"{override.input_line}: {key} takes one choice; {swept} makes a run of each")


def _check_sweep(override: Override, words: Sequence[str]) -> None:
    """Refuse a sweep that Hydra could never list, and one over the folders that jobs get by themselves."""
    value, key = override.value(), override.key_or_group
    if isinstance(value, IntervalSweep) and not any(word.startswith("hydra/sweeper=") for word in words):
        raise ConfigError(f"{override.input_line}: a sweep lists its values, as in -m {key}=A,B or {key}=range(1,4)")
    if isinstance(value, RangeSweep):
        start, stop, step = value.start or 0, value.stop, value.step
        if stop is None or step == 0 or (stop - start) / step > MAX_SWEPT:
            raise ConfigError(f"{override.input_line}: at most {MAX_SWEPT} values of a key are swept")
    if isinstance(value, ChoiceSweep) and len(value.list) > MAX_SWEPT:
        raise ConfigError(f"{key}: {len(value.list)} values; at most {MAX_SWEPT} of a key are swept")
    if key in ("run_dir", "resume"):
        raise ConfigError(f"{override.input_line}: jobs of a sweep get folders of their own, below runs/<sweep.name>")


def typed_places(words: Sequence[str]) -> list[str]:
    """Return the folders of configs that ``hydra.searchpath=`` names.

    Raises:
        ConfigError: it is given twice (Hydra would use only one), or names something else.
    """
    typed = [word for word in words if word.startswith(SEARCHPATH)]
    if len(typed) > 1:
        raise ConfigError(f"{' '.join(typed)}: give hydra.searchpath once, as a list of folders")
    if not typed:
        return []
    value = OverridesParser.create().parse_overrides(typed)[0].value()
    places = [str(place) for place in value] if isinstance(value, list) else None
    if places is None or not all(_folder(place).is_dir() for place in places):
        raise ConfigError(f"{typed[0]}: it must be a list of folders that exist, such as {SEARCHPATH}[file:///home/me]")
    return [str(_folder(place)) for place in places]


def _folder(place: str) -> Path:
    return Path(place.removeprefix("file://")).resolve()


def searchpath(folders: Sequence[str]) -> str:
    """Return the word that adds folders of configs, whatever characters their names have."""
    return f"{SEARCHPATH}[{','.join(quoted(f'file://{folder}') for folder in folders)}]"


def leads_to_recipes(place: Path) -> bool:
    """Return whether a folder holds a link to the recipes of ``recipes_dir=``, and nothing else."""
    trusted = {Path(path).resolve() for path in asr.recipes.__path__}
    entries = [path.resolve() for path in place.iterdir()]
    return len(entries) == 1 and entries[0] in trusted


def words_for_jobs(sources: Sequence[Any]) -> list[str]:
    """Return what a job of a sweep, a fresh process, must be told to find the configs that were typed for it.

    Args:
        sources: ``hydra.runtime.config_sources`` of the job.
    """
    added = [
        str(source.path)
        for source in sources
        # jobs are told recipes_dir, and link the recipes themselves
        if source.provider in ADDED and not leads_to_recipes(Path(str(source.path)))
    ]
    return [searchpath(added)] if added else []
