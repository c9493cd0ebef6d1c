"""Every option that pages, messages and advice name composes in a command that they are about."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from asr.run.command_line import CONFIGS, choices, config_folder, expand_short_forms
from asr.run.compose import DECLARING
from asr.run.instantiate import with_defaults
from asr.run.options import COMMANDS, checked_options, options_of
from werdict.errors import ConfigError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("recipes/*/*.md"), *ROOT.glob("optim/*.md")]
PAGES.remove(ROOT / "docs" / "migrating.md")  # names options of other toolkits
MODULES = [*ROOT.glob("asr/**/*.py"), *ROOT.glob("optim/**/*.py"), *ROOT.glob("werdict/**/*.py")]
# what names options of these commands, of the first that has one; others may mean any
ABOUT = {
    "docs/comparing.md": ("compare", "train"),
    "docs/any_toolkit.md": ("compare",),
    "werdict/": ("compare", "train"),
}
# keys of Hydra's plugins, of Lightning and of prepare functions; and files that users write
ELSEWHERE = ("hydra.", "trainer.", "data.prepare.")
OWN = ("nadam", "adabelief", "mlflow", "signs", "slow_encoder", "own")
NEEDED = {"trainer=slurm": "trainer.num_nodes=2"}  # options that a choice leaves to the user
WORD = re.compile(r"(?<![\w./+~{$-])([a-z_]+(?:\.[a-z]\w*)*)=([^\s`|,;)\]}'\"]*)")


def spans(file: Path) -> Iterator[str]:
    """Yield the code of a page, or the texts of a module."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        yield from re.findall(r"`([^`\n]+=[^`\n]*)`", text)
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            yield from block.replace("\\\n", " ").splitlines()
    else:
        yield from (
            re.sub(r"^ *>>> .*", "", node.value, flags=re.MULTILINE)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )


def named() -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    """Yield each option with its place, the commands that it may be of, and its value."""
    for file in [*PAGES, *MODULES]:
        place = str(file.relative_to(ROOT))
        about = next((names for start, names in ABOUT.items() if place.startswith(start)), tuple(COMMANDS))
        for span in spans(file):
            of = tuple(name for name in re.findall(r"\basr-(\w+) ", span) if name in COMMANDS) or about
            yield from ((place, of, key, value) for key, value in WORD.findall(span))


@cache
def known(command: str) -> dict[str, Collection[str]]:
    """Return the keys of a command, and by each what can be chosen, if only that can."""
    folder = config_folder(command)
    with initialize_config_dir(str(folder), version_base="1.3"):
        keys: dict[str, Collection[str]] = dict.fromkeys(parents(OmegaConf.to_container(compose(command))), ())
    for key, kind, _ in options_of(COMMANDS[command]):
        literals = [name for part in (kind, *get_args(kind)) if get_origin(part) is Literal for name in get_args(part)]
        keys[key] = literals or keys.get(key, ())
    groups = [group for group in folder.iterdir() if group.is_dir() and group.name in keys]
    files = [file for group in groups for file in group.glob("*.yaml")]
    for file in [*files, *(ROOT.glob("recipes/*/*.yaml") if folder == CONFIGS else ())]:
        prefix = "" if "@package _global_" in file.read_text(encoding="utf-8") else f"{file.parent.name}."
        node: Any = OmegaConf.to_container(OmegaConf.load(file))
        for key in parents(with_defaults(node, "") if file.parent.name in DECLARING else node, prefix):
            keys.setdefault(key, ())
    return keys | {group.name: [*choices(folder, group.name), *keys[group.name]] for group in groups}


def parents(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of nested mappings, those of mappings too."""
    for key, value in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{key}"
        yield from parents(value, f"{prefix}{key}.")


def refused(command: str, words: Sequence[str]) -> list[str]:
    """Return the words that do not compose, neither together nor each with a choice that has its key."""
    if not words or is_composed(command, words):
        return []
    if len(words) > 1:
        return [*refused(command, words[: len(words) // 2]), *refused(command, words[len(words) // 2 :])]
    folder, group = config_folder(command), words[0].partition(".")[0]
    choice = (f"{group}={name}" for name in choices(folder, group))
    return [] if any(is_composed(command, [name, *words]) for name in choice) else [*words]


def is_composed(command: str, words: Sequence[str]) -> bool:
    """Return whether a command takes these words, and dummies for those that it cannot do without."""
    needed = [NEEDED[word] for word in words if word in NEEDED]
    try:
        config = compose(command, overrides=[expand_short_forms(word) for word in [*words, *needed]])
        for key, _, _ in options_of(COMMANDS[command]):
            if OmegaConf.is_missing(config, key):
                OmegaConf.update(config, key, "x")
        unresolved, resolved = (OmegaConf.to_container(config, resolve=resolve) for resolve in (False, True))
        checked_options(command, unresolved, resolved)
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        return print(command, words, error) is not None  # shown if the test fails
    return True


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_options_in_pages_messages_and_advice_are_composed(command):
    values: dict[str, set[str]] = defaultdict(set)
    for _, commands, key, value in named():
        value = value.rstrip(".:")
        first = next((name for name in commands if key in known(name) and value in (known(name)[key] or [value])), None)
        if command == first and re.fullmatch(r"[a-z0-9_][\w.+/:-]*", value) and not key.startswith(ELSEWHERE):
            values[key] |= {value} - {*OWN}
    rounds = zip_longest(*([f"{key}={value}" for value in sorted(of_key)] for key, of_key in values.items()))
    with initialize_config_dir(str(config_folder(command)), version_base="1.3"):
        assert not [word for words in rounds for word in refused(command, [*filter(None, words)])]


def test_options_in_pages_messages_and_advice_are_those_of_a_command():
    every = {key for command in COMMANDS for key in known(command)}
    ends = {key.partition(".")[2] for key in every}  # a class names its options as it has them
    wrong = []
    for place, commands, key, value in set(named()):
        if key.startswith(ELSEWHERE) or (key not in every and ("." not in key or key in ends)):
            continue
        allowed = [known(command)[key] for command in commands if key in known(command)]
        allowed = allowed[:1] if commands in ABOUT.values() else allowed
        is_choice = re.fullmatch("[a-z_]+", value) and value not in ("null", "true", "false", *OWN)
        if not allowed or (is_choice and all(some and value not in some for some in allowed)):
            wrong.append(f"{place}: {key}={value} of {', '.join(commands)}")
    assert not wrong, "\n".join(sorted(wrong))
