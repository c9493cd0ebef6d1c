"""``resume=RUN``: the config that the run was started with, as data, and a close look at what has changed since.

A run's folder may come from somebody else. Nothing in it is handed to Hydra as if it had been typed: its composed
config is read as plain values and checked like a checkpoint's, and only what the user types now is an override.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser

from asr.cli.config.words import override_key
from asr.cli.errors import ConfigError
from asr.nested import at, leaves
from asr.plain_data import MAX_BYTES, check_plain, read_yaml
from asr.run_folder import DATA_RECORD, check_run_folder
from asr.safe_io import check_regular_file, named_path

# the user's decisions at this start, which a folder cannot make
TYPED_ONLY = ("resume", "trust", "allow_changes", "resume_logger", "recipes_dir", "run_dir", "find_batch_size")
# of files without which nothing is resumed
REMEDIES = {
    "config.yaml": "restore it, maybe from a config.backup file beside it",
    "overrides.yaml": "write [] into it, as its words are only shown; or start a new run if it had not begun",
}
CONFIG_NAME = "resumed"  # of the primary config that a run's folder becomes
DESTINATION = ("project", "entity", "mode")  # where a logger sends numbers to


def resumed_folder(words: Sequence[str]) -> Path | None:
    """Return the folder that ``resume=`` names on the command line, or None.

    Raises:
        ConfigError: it is not the folder of a run, or leads elsewhere.
    """
    given = typed_value(words, "resume")
    return None if given is None else run_folder(given)


def typed_value(words: Sequence[str], key: str) -> object:
    """Return what the command line says for a key; None if it does not name the key."""
    found = [word for word in words if word.startswith(f"{key}=")]
    return OverridesParser.create().parse_overrides(found)[-1].value() if found else None


def run_folder(given: object) -> Path:
    """Return the folder that ``resume=`` names.

    Raises:
        ConfigError: it is not a folder, holds no run, or a symbolic link in it leads out of it.
    """
    folder = named_path(given).resolve()
    missing = [name for name in REMEDIES if not (folder / name).is_file()]
    if len(missing) == len(REMEDIES):
        raise ConfigError(f"resume: {str(folder)!r} is not the folder of a run; give one with config.yaml, as in runs/")
    for name in missing:
        raise ConfigError(f"resume: {folder / name} is missing; {REMEDIES[name]}")
    check_run_folder(folder)
    return folder


def store_resumed(folder: Path, primary: Path, words: Sequence[str]) -> None:
    """Make the run's own config the primary one, named ``CONFIG_NAME``, that typed overrides change.

    Args:
        folder: of the run.
        primary: the yaml of ``asr-train``, for Hydra's node and for keys that the run did not have yet.
        words: overrides of the command line.

    Raises:
        ConfigError: the saved config holds what only a user may say, or its logger needs the user's word.
        ValueError: it is not plain data.
    """
    own = yaml.safe_load(primary.read_text(encoding="utf-8"))
    groups = [key for item in own["defaults"] if isinstance(item, dict) for key in item if " " not in key]
    overriding = [item for item in own["defaults"] if isinstance(item, dict) and any(" " in key for key in item)]
    typed = {override_key(word) for word in words}
    if "recipe" in typed:
        raise ConfigError("recipe: a resumed run keeps its recipe; start a new run for another one")
    if started := [key for key in typed if key.partition(".")[0] == "init"]:
        raise ConfigError(
            f"{started[0]}: a resumed run continues with its own weights; leave it out, or start a new run"
        )
    if "run_dir" in typed:
        raise ConfigError("run_dir: a resumed run continues in its own folder; leave out run_dir, or resume")
    whole = saved_config(folder)
    unknown = whole.keys() - own.keys() - set(groups)
    if unknown:
        raise ConfigError(f"resume: {folder / 'config.yaml'}: there is no key {min(unknown)!r} at the top level")
    cost = at(whole, "callbacks", "cost")
    if isinstance(cost, dict):
        cost.pop("every", None)  # of earlier runs, which timed every tenth step
    # a group that is typed replaces what the run had there
    saved = {key: value for key, value in whole.items() if key not in typed & set(groups)}
    if typed_value(words, "resume_logger") is not True:
        defaults = yaml.safe_load((primary.parent / "logger" / "wandb.yaml").read_text(encoding="utf-8"))["wandb"]
        _refuse_destinations(saved, typed, defaults)
    scalars = {key: value for key, value in own.items() if key not in ("defaults", "hydra")}
    node = scalars | saved | {key: own.get(key) for key in TYPED_ONLY}
    _follow(node, saved, typed)
    defaults = ["_self_", *({group: None} for group in groups if group != "recipe"), *overriding]
    ConfigStore.instance().store(CONFIG_NAME, {"defaults": defaults, "hydra": own["hydra"], **node})


def _follow(node: dict[str, Any], saved: Mapping[str, Any], typed: set[str]) -> None:
    """Let values that followed another option when the run began follow what is typed for it now."""
    if typed & {"trainer.max_steps", "trainer.max_epochs"} and at(saved, "schedule", "max_steps") == at(
        saved, "trainer", "max_steps"
    ):
        node["schedule"] = {**saved["schedule"], "max_steps": "${trainer.max_steps}"}
    rules = at(saved, "parameter_rules", "rules")
    if "optimizer.lr" in typed and isinstance(rules, list):
        lr = at(saved, "optimizer", "lr")
        followed = [
            {**rule, "optimizer": {**rule["optimizer"], "lr": "${optimizer.lr}"}}
            if lr is not None and at(rule, "optimizer", "lr") == lr
            else rule
            for rule in rules
        ]
        node["parameter_rules"] = {**saved["parameter_rules"], "rules": followed}


def _refuse_destinations(saved: Mapping[str, Any], typed: set[str], defaults: Mapping[str, Any]) -> None:
    """Refuse a logger that would send numbers where nobody has said now that they may go."""
    foreign = [
        f"logger.{name}.{key}={value}"
        for name, node in (saved.get("logger") or {}).items()
        for key in DESTINATION
        if (value := at(node, key)) not in (None, defaults[key], "offline") and f"logger.{name}.{key}" not in typed
    ]
    if foreign:
        raise ConfigError(
            f"resume: the run's folder says where its numbers go: {' '.join(foreign)}; type that too if it is right, "
            "or resume_logger=true to follow the folder, or choose logger=csv"
        )


def saved_config(folder: Path) -> dict[str, Any]:
    """Return the composed config that a run was started with, as plain values.

    Raises:
        ConfigError: it is not such a config.
        ValueError: it cannot be read.
    """
    path = folder / "config.yaml"
    with _with_remedy(REMEDIES["config.yaml"]):
        config = read_yaml(path)
    if not isinstance(config, dict):
        raise ConfigError(f"resume: {path} holds {type(config).__name__}, not a config")
    check_plain(config, str(path))
    for name in ("trainer", "callbacks", "data", "logger"):
        if not isinstance(config.get(name), dict):
            raise ConfigError(f"resume: {path}: {name} must hold options, given {config.get(name)!r}")
    if set(config) & {"hydra", "defaults"}:
        raise ConfigError(f"resume: {path} has keys of Hydra's, which only a command line may have; remove the run")
    for key, value in leaves(config):
        if isinstance(value, str) and "${" in value:
            raise ConfigError(f"resume: {path}: {key} is {value!r}; a composed config has no interpolations")
        if value == "???":
            raise ConfigError(f"resume: {path}: {key} has no value, but '???'; remove the run")
        if not re.fullmatch(r"[\w.-]+", key):
            raise ConfigError(f"resume: {path}: {key!r} is not a key of a config")
    return config


@contextlib.contextmanager
def _with_remedy(remedy: str) -> Iterator[None]:
    """Say what to do about a file that cannot be read."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"resume: {error}; {remedy}") from None


def read_texts(path: Path, remedy: str) -> list[str]:
    """Return the list of texts in a file.

    Raises:
        ConfigError: the file holds something else.
    """
    with _with_remedy(remedy):
        saved = read_yaml(path) or []
        if not isinstance(saved, list) or not all(isinstance(text, str) for text in saved):
            raise ConfigError(f"{path} is not a list of texts")
    return saved


def recorded_data(folder: Path) -> str:
    """Return the fingerprint of the data of a run, ``unknown`` if none is recorded.

    Raises:
        ConfigError: the file holds something else.
    """
    path = folder / DATA_RECORD
    if not path.exists():
        return "unknown"
    with _with_remedy("remove it"):
        check_regular_file(path, MAX_BYTES)
    found = path.read_bytes().decode(errors="replace")
    if not re.fullmatch(r"[0-9a-f]{10}/[0-9a-f]{10}", found):
        raise ConfigError(
            f"resume: {path} holds {found[:40]!r}, not a fingerprint of data; remove it, and type data.dir=PATH too"
        )
    return found


def recorded_overrides(folder: Path, words: Sequence[str]) -> list[str]:
    """Return what was typed for a run so far, to be recorded and shown, never to be obeyed; what is typed now replaces.

    Raises:
        ConfigError: what was recorded is no list of words.
    """
    now = [word for word in words if override_key(word) not in TYPED_ONLY]
    typed = {override_key(word) for word in now}
    saved = read_texts(folder / "overrides.yaml", "write [] into it: the words are only shown")
    return [*(word for word in saved if override_key(word) not in typed), *now]
