"""Every option that pages, messages and advice name composes in a command that they are about."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from asr.config.help import CONFIGS, choices, config_folder
from asr.config.schema import COMMANDS
from asr.options import options_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("recipes/*/*.md"), *ROOT.glob("optim/*.md")]
PAGES.remove(ROOT / "docs" / "migrating.md")  # names options of other toolkits
MODULES = [*ROOT.glob("asr/**/*.py"), *ROOT.glob("optim/**/*.py")]
# what names options of these commands, of the first that has one; others may mean any
ABOUT = {
    "docs/comparing.md": ("compare", "train"),
    "docs/any_toolkit.md": ("compare",),
    "asr/compare/": ("compare", "train"),
    "asr/tracking/wandb_logger.py": ("compare",),
}
# keys of Hydra's plugins, of Lightning and of prepare functions; and files that users write
ELSEWHERE = ("hydra.", "trainer.", "data.prepare.")
OWN = ("nadam", "adabelief", "mlflow", "signs", "slow_encoder")
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
            node.value
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
    files = [file for group in groups for place in folder.glob(f"{group.name}*") for file in place.glob("*.yaml")]
    for file in [*files, *(ROOT.glob("recipes/*/*.yaml") if folder == CONFIGS else ())]:
        prefix = (
            ""
            if "@package _global_" in file.read_text(encoding="utf-8")
            else f"{file.parent.name.removesuffix('_options')}."
        )
        for key in parents(OmegaConf.to_container(OmegaConf.load(file)), prefix):
            keys.setdefault(key, ())
    return keys | {group.name: [*choices(folder, group.name), *keys[group.name]] for group in groups}


def parents(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of nested mappings, those of mappings too."""
    for key, value in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{key}"
        yield from parents(value, f"{prefix}{key}.")


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
