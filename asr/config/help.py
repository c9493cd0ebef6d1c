"""``--help`` of the commands, read from the configs themselves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

import asr.recipes
from asr.compare.report.terms import explanations
from asr.config.command_line import WORDS
from asr.config.schema import COMMANDS
from asr.options import options_of

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
    helps = {key: option.help for key, _, option in options_of(COMMANDS[command])}
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
            shown = [pair for pair in options(configs / group / f"{groups[group]}.yaml", f"{group}.") if pair[1]]
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
