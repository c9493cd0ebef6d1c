"""The words of a command line, and the help of the commands."""

from __future__ import annotations

import datetime
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

import asr.recipes
from asr.run.folder import quoted
from asr.run.options import COMMANDS, options_of
from werdict.errors import ConfigError
from werdict.files import named_path
from werdict.formatting import explanations

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


CONFIGS = Path(__file__).resolve().parents[1] / "configs"
LISTED = (
    *("recipe", "encoder", "head", "optimizer", "schedule", "parameter_rules", "decoder", "tokenizer", "features"),
    *("augment", "trainer", "logger", "sweep", "callbacks"),
)
OPTION = re.compile(r"(?P<indent> *)(?P<key>[a-z]\w*):(?: +(?P<value>[^ #].*?))?(?: +# (?P<comment>.*))?")
NOT_SHOWN = ("defaults", "hydra")
# groups whose options are shown as the default choice has them, those with a comment
CHANGED_MOST = ("trainer", "optimizer", "encoder", "callbacks", "logger")
# groups, and options of asr-train, that what is prepared depends on
PREPARED = ("recipe", "tokenizer", "features")
OF_PREPARED = ("init.path=", "init.keep_tokenizer=", "recipes_dir=")


def config_folder(config_name: str) -> Path:
    """Return the folder with the config and the groups of a command; it has its own if a key is named like a group."""
    folder = CONFIGS / config_name
    return folder if folder.is_dir() else CONFIGS


def config_file(config_name: str, configs: Path) -> Path:
    """Return the file with the options of a command; asr-prepare reads a part of those of asr-train."""
    return configs / ("train.yaml" if config_name == "prepare" else f"{config_name}.yaml")


def describe(file: Path) -> str:
    """Return the first comment of a yaml file that is not a package directive."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            return line.lstrip("# ")
    return ""


def choices(configs: Path, group: str) -> dict[str, str]:
    """Return the options of a config group with their descriptions."""
    # recipes may lie in a folder of the user's too
    folders = [Path(folder) for folder in asr.recipes.__path__] if group == "recipe" else [configs / group]
    return {
        str(file.relative_to(folder).with_suffix("")): describe(file)
        for folder in folders
        for file in sorted(folder.rglob("*.yaml"))
    }


def options(file: Path, parent: str = "", command: str = "train") -> Iterator[tuple[str, str]]:
    """Yield the keys of a yaml file, as ``key=value``, with their help: of their option, or else the comment on them.

    Args:
        file: of ours: two spaces for each level, no list over several lines.
        parent: of the keys, with a dot at its end.
        command: whose options they are.
    """
    helps = {key: help_text for key, _, help_text in options_of(COMMANDS[command])}
    path: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if match := OPTION.fullmatch(line):
            path[len(match["indent"]) // 2 :] = [match["key"]]
            if path[0] not in NOT_SHOWN and match["value"]:
                value = re.sub(
                    r"\$\{oc\.select:[^,]*,(.*)\}", r"\1", match["value"]
                )  # what is taken if no recipe knows better
                key = f"{parent}{'.'.join(path)}"
                yield f"{key}={value}", helps.get(key) or match["comment"] or ""


def class_options(name: str) -> dict[str, str]:
    """Return the options of a class of `optim`, or of a table of options, and what its docstring says; imports none."""
    options: dict[str, str] = {}
    section = re.compile(rf"(?sm)^class {name}\(.*?^    (?:Args|Attributes):\n(.*?)\n(?:\n|    \"\"\")")
    for file in (Path(__file__).resolve().parents[2] / "optim").rglob("*.py"):
        found = section.search(file.read_text(encoding="utf-8"))
        pairs = re.findall(r"^ {8}(\w+): (.*(?:\n {9,}.*)*)", found[1], re.MULTILINE) if found else ()
        options |= {option: " ".join(help_text.split()) for option, help_text in pairs if option != "params"}
    for table in re.findall(r"`(\w+Options)`", options.pop("common", "") + options.pop("options", "")):
        options |= class_options(table)
    return {option: re.sub(r"[,;] see `.*|\.$", "", help_text) for option, help_text in options.items()}


def shown_options(config_name: str, configs: Path) -> list[tuple[str, str]]:
    """Return the options of a command that users set, as `options` does."""
    is_prepare = config_name == "prepare"
    shown = [
        pair
        for pair in options(config_file(config_name, configs), command=config_name)
        if not is_prepare or pair[0].startswith(OF_PREPARED)
    ]
    for group in {"train": ("data", "sweep"), "prepare": ("data",)}.get(config_name, ()):
        shown += [
            (option, comment)
            for option, comment in options(configs / group / "default.yaml", f"{group}.")
            if not option.endswith("=???")  # which the recipe gives
        ]
    return shown


def command_help(config_name: str, configs: Path) -> str:
    """Return the help of a command: what it does, its options, and what can be chosen, one line each."""
    lines = [describe(configs / f"{config_name}.yaml"), "", "  KEY=VALUE …   override any value; --cfg job shows all"]
    if config_name in WORDS:
        lines.append(f"  WORD …        words without = are {', then '.join(WORDS[config_name])}")
    is_prepare = config_name == "prepare"
    used = yaml.safe_load(config_file(config_name, configs).read_text(encoding="utf-8")).get("defaults", ())
    groups = {key: choice for item in used if isinstance(item, dict) for key, choice in item.items()}
    shown = shown_options(config_name, configs)
    lines += ["", "options, with their defaults (???: required):", *_columns(shown)]
    if config_name == "train":
        for group in CHANGED_MOST:
            file = configs / group / f"{groups[group]}.yaml"
            shown = [pair for pair in options(file, f"{group}.") if pair[1]]
            if group == "optimizer":
                text = file.read_text(encoding="utf-8")
                described = class_options(yaml.safe_load(text)["_target_"].rpartition(".")[2])
                shown += [(f"{group}.{name}=…", said) for name, said in described.items() if f"\n{name}:" not in text]
            lines += ["", f"of {group}={groups[group]}, unless the recipe chooses another:", *_columns(shown)]
    for group in (group for group in (PREPARED if is_prepare else LISTED) if group in groups):
        lines += ["", f"{group}=", *_columns(choices(configs, group).items())]
    if config_name == "compare":
        terms = explanations(0.95, "WER").items()
        lines += ["", "terms in the report:"]
        lines += [textwrap.fill(f"  {term}: {text}", 100, subsequent_indent="    ") for term, text in terms]
    if "recipe" in groups:
        lines += ["", "recipes_dir=PATH adds your own recipes, and runs the Python code in that folder."]
    sweeps = "-m runs every combination of comma-separated values; " if config_name == "train" else ""
    lines += ["", f"{sweeps}--hydra-help shows Hydra's own options."]
    return "\n".join(lines)


def _columns(pairs: Iterable[tuple[str, str]]) -> list[str]:
    rows = list(pairs)
    width = min(max((len(name) for name, _ in rows), default=0), 60)
    return [f"  {name:<{width}}  {text}".rstrip() for name, text in rows]
