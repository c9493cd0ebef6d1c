"""Words → a composed config, also of a resumed run; and how two configs differ."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

import asr.recipes
from asr.former_names import with_present_names
from asr.processes import TORCHRUN, is_first_process
from asr.run.command_line import (
    CONFIGS,
    added_config_folders,
    expand_home,
    expand_short_forms,
    fill_keys,
    name_sweep,
    override_key,
    override_value,
    quote_non_ascii,
)
from asr.run.folder import ACCEPTED, DATA_RECORD, FILES, backup_path, has_begun, quoted
from asr.run.instantiate import with_defaults
from asr.run.options import RunOptions, checked_options, decides, fields, has_effect
from werdict.console import one_line
from werdict.errors import ConfigError
from werdict.files import flatten, get_nested, named_path, read_yaml, write_whole

CONFIG_NAME = "resumed"  # of the primary config that a run's folder becomes
LABELS = ("_target_", "group", "name", "job_type", "tags", "notes")  # of a logger: all else may say where numbers go
DECLARING = ("optimizer", "schedule")  # groups whose yaml files leave options to the defaults of the class
OF_RUN = ("updates", "result", "sample", "speed")  # what options decide that a run's own config holds
ABSENT = "absent"  # what a config that lacks a key is said to have there
UNLISTED = "unlisted"  # what is composed on it takes options that its yaml file does not list, without a +
ConfigStore.instance().store(UNLISTED, OmegaConf.create({}, flags={"struct": False}))
OWN = "own"  # the empty choice of these groups, for a class that none of our choices names
OWN_GROUPS = ("encoder", "head", "decoder", "optimizer")
for group in OWN_GROUPS:
    choice: dict[str, Any] = {"_target_": "???"}
    if group == "optimizer":
        choice["defaults"] = [{"override /parameter_rules@_global_.parameter_rules": "none"}, "_self_"]
    ConfigStore.instance().store(OWN, OmegaConf.create(choice, flags={"struct": False}), group)


@dataclass(frozen=True)
class Composed:
    """What Hydra has composed of the words of a command line; later parts ask this, and neither Hydra nor each other.

    Attributes:
        command: its name.
        config: with interpolations, without Hydra's own node; nobody changes it.
        words: the overrides.
        groups: names of the choices of groups.
        optimizers: names that may be chosen.
        folders: overrides by which another process finds the same configs.
        sweep_dir: folder of the sweep whose job this is; None: no job.
        is_parallel: whether other jobs of the sweep run at the same time.
        options: of the command, checked.
        given: the keys that the user has given on the command line.

    Raises:
        ConfigError: names the key, what was given and what is allowed.
        OmegaConfBaseException: a key refers to something that is not there.
    """

    command: str
    config: DictConfig
    words: tuple[str, ...]
    groups: Mapping[str, str] = field(default_factory=dict)
    optimizers: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    sweep_dir: Path | None = None
    is_parallel: bool = False
    options: Any = field(init=False)
    given: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        resolved = cast(dict[str, Any], OmegaConf.to_container(self.config, resolve=True))
        object.__setattr__(self, "options", checked_options(self.command, self.unresolved(), resolved))
        object.__setattr__(self, "given", frozenset(map(override_key, self.words)))

    @classmethod
    def of(cls, command: str, config: DictConfig, hydra: Any = None) -> Composed:
        """Return what Hydra has composed, with what its own node says of it.

        Args:
            command: its name.
            config: of the command.
            hydra: Hydra's node; None: it is still in the config.
        """
        if hydra is None:
            hydra, config = config.hydra, OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        is_job = hydra.mode == RunMode.MULTIRUN
        return cls(
            command,
            config,
            tuple(hydra.overrides.task),
            {str(group): str(name) for group, name in hydra.runtime.choices.items()},
            tuple(GlobalHydra.instance().config_loader().get_group_options("optimizer")),
            tuple(added_config_folders(hydra.runtime.config_sources)),
            Path(hydra.sweep.dir) if is_job else None,
            is_job and not str(hydra.launcher._target_).endswith(".BasicLauncher"),
        )

    def unresolved(self) -> dict[str, Any]:
        """Return the config as plain data, with interpolations."""
        return cast(dict[str, Any], OmegaConf.to_container(self.config))

    def usual(self, group: str) -> Any:
        """Return what our configs say for the choice of a group, as plain data; None if it is the user's own."""
        file = CONFIGS / group / f"{self.groups.get(group)}.yaml"
        return read_yaml(file) if file.is_file() else None

    def has(self, key: str) -> bool:
        """Return whether the config has a key."""
        return OmegaConf.select(self.config, key, default=ABSENT) != ABSENT

    def is_interpolation(self, key: str) -> bool:
        """Return whether a key of a section has the value of another key, because nobody has set it."""
        section, _, name = key.rpartition(".")
        return OmegaConf.is_interpolation(OmegaConf.select(self.config, section), name)

    def with_values(self, values: Mapping[str, Any]) -> Composed:
        """Return this with other values of dotted keys; what refers to them follows."""
        config = copy.deepcopy(self.config)
        with open_dict(config):
            for key, value in values.items():
                OmegaConf.update(config, key, value, merge=False)
        return replace(self, config=config)


def run_folder(path: object) -> Path:
    """Return the folder that ``resume=`` names.

    Raises:
        ConfigError: it is not a folder, or holds no run.
    """
    folder = named_path(path).resolve()
    for name in FILES:
        if not (folder / name).is_file():
            raise ConfigError(
                f"resume: {str(folder)!r} is not the folder of a run, such as those below runs/: it has no {name}"
            )
    return folder


def store_resumed(folder: Path, primary: Path, overrides: Sequence[str]) -> None:
    """Make the run's own config the primary one, named ``CONFIG_NAME``, that overrides change.

    Args:
        folder: of the run.
        primary: the yaml of ``asr-train``, for Hydra's node and for keys that the run did not have yet.
        overrides: of the command line.

    Raises:
        ConfigError: the saved config holds what only a user may say, or its logger needs the user's word.
        ValueError: it cannot be read.
    """
    config = yaml.safe_load(primary.read_text(encoding="utf-8"))
    groups = [key for item in config["defaults"] if isinstance(item, dict) for key in item if " " not in key]
    overriding = [item for item in config["defaults"] if isinstance(item, dict) and any(" " in key for key in item)]
    given_keys = {override_key(word) for word in overrides}
    for key in sorted(given_keys):
        if key.partition(".")[0] in ("recipe", "init", "run_dir"):
            raise ConfigError(f"{key}: a resumed run keeps its own; leave it out, or start a new run")
    # a group that is chosen now replaces what the run had there
    saved = {key: value for key, value in saved_config(folder).items() if key not in given_keys & set(groups)}
    if override_value(overrides, "resume_logger") is not True:
        _refuse_destinations(saved, given_keys, primary.parent / "logger")
    scalars = {key: value for key, value in config.items() if key not in ("defaults", "hydra")}
    node = with_class_defaults(saved) | {key: config.get(key) for key in scalars if decides(key) == "this_start"}
    _follow(node, saved, given_keys)
    unlisted = (f"/{UNLISTED}@{key}" for key in DECLARING)
    defaults = [*unlisted, "_self_", *({group: None} for group in groups if group != "recipe"), *overriding]
    ConfigStore.instance().store(CONFIG_NAME, {"defaults": defaults, "hydra": config["hydra"], **node})


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run with the options that were added since, at their defaults."""
    return _completed(config, _defaults(), RunOptions)


def with_class_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run as `completed` does, optimizer and schedule with the defaults of their classes too."""
    whole = completed(config)
    return whole | {key: with_defaults(whole[key], key) for key in DECLARING if isinstance(whole.get(key), Mapping)}


@functools.cache
def _defaults() -> Mapping[str, Any]:
    groups = {group: read_yaml(CONFIGS / group / "default.yaml") for group in ("data", "sweep")}
    return {**read_yaml(CONFIGS / "train.yaml"), **groups}


def _completed(config: Any, defaults: Mapping[str, Any], options: Any) -> dict[str, Any]:
    added = {name: defaults[name] for name in fields(options) if name in defaults and name not in config}
    nested = {
        name: _completed(config[name], defaults[name], kind)
        for name, (kind, _) in fields(options).items()
        if fields(kind) and isinstance(config.get(name), Mapping) and name in defaults
    }
    return {**config, **added, **nested}


def _follow(node: dict[str, Any], saved: Mapping[str, Any], given_keys: set[str]) -> None:
    """Let values that were derived from another option when the run began follow its new value."""
    was_as_long = get_nested(saved, "schedule", "max_steps") == get_nested(saved, "trainer", "max_steps")
    if given_keys & {"trainer.max_steps", "trainer.max_epochs"} and was_as_long:
        node["schedule"] = {**saved["schedule"], "max_steps": "${trainer.max_steps}"}
    rules, lr = get_nested(saved, "parameter_rules", "rules"), get_nested(saved, "optimizer", "lr")
    if "optimizer.lr" in given_keys and isinstance(rules, list) and lr is not None:
        followed = [
            {**rule, "optimizer": {**rule["optimizer"], "lr": "${optimizer.lr}"}}
            if get_nested(rule, "optimizer", "lr") == lr
            else rule
            for rule in rules
        ]
        node["parameter_rules"] = {**saved["parameter_rules"], "rules": followed}


def _refuse_destinations(saved: Mapping[str, Any], given_keys: set[str], choices: Path) -> None:
    """Refuse a logger destination that comes from the run folder unless it is set again.

    Args:
        saved: config of the run.
        given_keys: keys of the command line.
        choices: folder of our loggers, whose own options are harmless.
    """
    usual = {name: node for path in choices.glob("*.yaml") for name, node in read_yaml(path).items()}
    foreign = [
        f"logger.{name}.{key}={value}"
        for name, node in (saved.get("logger") or {}).items()
        for key, value in (node or {}).items()
        if key not in LABELS
        and value not in (None, get_nested(usual, name, key), "offline")
        and f"logger.{name}.{key}" not in given_keys
    ]
    if foreign:
        raise ConfigError(
            f"resume: the run's folder says where its logger sends metrics: {' '.join(foreign)}; give this again if it "
            "is right, or accept it with resume_logger=true, or choose logger=csv"
        )


def saved_config(folder: Path) -> dict[str, Any]:
    """Return the composed config that a run was started with, as plain values.

    Raises:
        ConfigError: it holds what only a user may say.
        ValueError: it cannot be read.
    """
    path = folder / "config.yaml"
    config = with_present_names(read_yaml(path))
    if not isinstance(config, dict) or set(config) & {"hydra", "defaults"}:
        raise ConfigError(
            f"resume: {path} is not a config, or has Hydra's keys, which are allowed only on the command line"
        )
    for key, value in flatten(config).items():
        if "${" in str(value):
            raise ConfigError(f"resume: {path}: {key} is {value!r}; a composed config has no interpolations")
    return config


def recorded_data(folder: Path) -> str:
    """Return the fingerprint of the data of a run, ``unknown`` if none is recorded."""
    path = folder / DATA_RECORD
    return path.read_text(encoding="utf-8") if path.exists() else "unknown"


def recorded_overrides(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a run so far, updated by those given now; they are recorded and shown, never applied."""
    new = [word for word in overrides if decides(override_key(word)) != "this_start"]
    keys = {override_key(word) for word in new}
    return [*(word for word in read_yaml(folder / "overrides.yaml") or () if override_key(word) not in keys), *new]


@dataclass(frozen=True)
class Change:
    """What differs between a run and its resumption: a key of the config, or what it was trained on."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} in the run, {self.now!r} now"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Return the keys in which two configs differ."""
    old, new = flatten(before), flatten(now)
    pairs = [Change(key, old.get(key, ABSENT), new.get(key, ABSENT)) for key in {**old, **new}]
    return [change for change in pairs if change.before != change.now]


def changes(before: Mapping[str, Any], current: Mapping[str, Any]) -> list[Change]:
    """Return the differences between two configs that affect training; places, speed and derived values may differ.

    An option that a run of an older version does not have had its default.
    """
    both = with_class_defaults(before), with_class_defaults(current)
    changed = [change for change in differences(*both) if decides(change.key) in ("updates", "sample")]
    return sorted(changed, key=lambda change: change.key)


def unaccepted(changed: Sequence[Change], folder: Path) -> list[Change]:
    """Return those changes since a checkpoint that the user has not accepted for the run, with both of their values."""
    path = folder / ACCEPTED
    accepted = read_yaml(path) if path.exists() else []
    accepted_texts = [str(Change(**change)) for change in accepted]
    return [change for change in changed if str(change) not in accepted_texts]


def record_accepted(folder: Path, changed: Sequence[Change]) -> None:
    """Write the changes that the user has accepted, so that a resumption before the next checkpoint knows them.

    Earlier ones, which a checkpoint may hold by now, are kept beside them, for whoever compares the run.

    Raises:
        OSError: it cannot be written.
    """
    path, content = folder / ACCEPTED, yaml.safe_dump([asdict(change) for change in changed], sort_keys=False).encode()
    if path.exists() and (former := path.read_bytes()) != content:
        write_whole(backup_path(path), former)
    write_whole(path, content)


def refuse_changes(changed: Sequence[Change | str], anyway: bool) -> None:
    """Refuse changes that were not asked for.

    Raises:
        ConfigError: something has changed, without ``allow_changes=true``.
    """
    if changed and not anyway:
        refused = ConfigError("resume: the config or the data have changed since the run was started:")
        for line in (
            *(f"  {change}" for change in changed),
            "Undo the changes, or accept them with allow_changes=true.",
        ):
            refused.add_note(line)
        raise refused


def composed_from(command: str, arguments: Sequence[str], folder: Path) -> tuple[str, list[str]]:
    """Return the primary config and the arguments with which Hydra composes the config of a command.

    Args:
        command: its name.
        arguments: of the command line.
        folder: of the command's config.
    """
    arguments = [quote_non_ascii(expand_home(expand_short_forms(word))) for word in fill_keys(command, arguments)]
    if (recipes_dir := override_value(arguments, "recipes_dir")) is not None:
        _add_recipes(recipes_dir)
    if command != "train":
        return command, arguments
    arguments = name_sweep(_resuming_after_restart(arguments))
    if (resumed := override_value(arguments, "resume")) is None:
        return command, _with_own(arguments)
    store_resumed(run_folder(resumed), folder / f"{command}.yaml", arguments)
    return CONFIG_NAME, arguments


def _with_own(arguments: Sequence[str]) -> list[str]:
    """Return arguments that choose ``own`` where they give a class without a choice.

    A choice that is given too keeps its options, unless it is one of our optimizers: its rates are wrong for another.
    """
    given = {word.partition("=")[0] for word in arguments if "{" not in word}
    if (CONFIGS / "optimizer" / f"{override_value(arguments, 'optimizer')}.yaml").is_file():
        given -= {"optimizer"}
    own = [group for group in OWN_GROUPS if group in named_classes(arguments) and group not in given]
    return choose_own(arguments, own) if own else [*arguments]


def _resuming_after_restart(arguments: Sequence[str]) -> list[str]:
    """Return arguments that resume a run which torchrun had started by these, before it lost a process or got another.

    Raises:
        ConfigError: torchrun restarts processes, which would not find the run.
    """
    if TORCHRUN not in os.environ or override_value(arguments, "resume") is not None:
        return [*arguments]
    if (run_dir := override_value(arguments, "run_dir")) is None:
        if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
            raise ConfigError("run_dir: torchrun --max-restarts needs run_dir=PATH, by which a restart finds the run")
        return [*arguments]
    folder = named_path(run_dir)
    if not has_begun(folder):
        return [*arguments]
    if is_first_process():
        print(f"run_dir: torchrun has started {one_line(str(folder))} before: resuming it", flush=True)
    # of its own config; what belongs to each start is said again
    recorded = read_yaml(folder / "overrides.yaml") or ()
    known = [word for word in recorded if word.startswith("~") or decides(override_key(word)) in OF_RUN]
    given = [word for word in _with_own(arguments) if word not in known and override_key(word) != "run_dir"]
    again = [f"++{word.lstrip('+')}" if word.startswith("+") else word for word in given]  # the config has the key
    return [*again, f"resume={quoted(str(folder))}"]


def named_classes(words: Sequence[str]) -> dict[str, set[str]]:
    """Return the keys whose ``_target_`` words give, with the options that they give there."""
    named: dict[str, set[str]] = {}
    for word in words:
        key = override_key(word)
        if key.endswith("._target_"):
            named.setdefault(key.removesuffix("._target_"), set())
        elif "_target_" in word.partition("=")[2]:
            value = override_value([word.lstrip("+")], key)
            for mapping in value.list if isinstance(value, ChoiceSweep) else [value]:
                if isinstance(mapping, dict) and "_target_" in mapping:
                    named.setdefault(key, set()).update(mapping)
    for place, options in named.items():
        below = (override_key(word) for word in words if override_key(word).startswith(f"{place}."))
        options.update(key.removeprefix(f"{place}.").partition(".")[0] for key in below)
    return named


def choose_own(words: Sequence[str], groups: Collection[str]) -> list[str]:
    """Return words that choose ``own`` for some groups, instead of what they choose or delete there."""
    chosen, deleted = (tuple(f"{sign}{group}{end}" for group in groups) for sign, end in (("", "="), ("~", ".")))
    kept = [
        word for word in words if not word.startswith(deleted) and not (word.startswith(chosen) and "{" not in word)
    ]
    # argparse wants all overrides together
    place = next((place for place, word in enumerate(kept) if "_target_" in word), len(kept))
    return [*kept[:place], *(f"{group}={OWN}" for group in groups), *kept[place:]]


def _add_recipes(recipes_dir: object) -> None:
    """Make a folder a place where recipes, as further choices of their group, and their prepare functions are found.

    Raises:
        ConfigError: there is no such folder.
    """
    path = named_path(recipes_dir).resolve()
    if not path.is_dir():
        raise ConfigError(f"recipes_dir: there is no folder {str(path)!r}")
    if is_first_process():
        print(f"recipes_dir: runs the Python code in {one_line(str(path))}; name only what you trust", flush=True)
    if str(path) not in asr.recipes.__path__:
        asr.recipes.__path__.append(str(path))
    for file in path.rglob("*.yaml"):
        group = Path("recipe", file.relative_to(path)).parent.as_posix()
        ConfigStore.instance().store(f"{file.stem}", OmegaConf.load(file), group, "_global_")


def difference_from_recipe(options: RunOptions, run_dir: Path) -> dict[str, tuple[str, str]]:
    """Return the values of recipe and run by key, where they differ and affect training.

    Empty if the recipe is not found any more.

    Args:
        options: of the run.
        run_dir: its folder, which records its overrides.
    """
    try:
        composed = compose("train", [f"recipe={recipe_of(run_dir)}"])
    except MissingConfigException:
        return {}  # a resumed run whose recipes_dir is not given
    # a recipe may leave values to its user, which are shown as ???
    raw: Any = OmegaConf.to_container(composed, resolve=True)
    return {
        change.key: (_shown(change.before), _shown(change.now))
        for change in differences(with_class_defaults(raw), options.plain())
        # a value that the recipe leaves to the machine is not a difference
        if has_effect(change.key) and (change.key, change.before) != ("trainer.cuda_graphs", None)
    }


def recipe_of(run_dir: Path) -> str:
    """Return the name of a run's recipe."""
    return str(override_value(read_yaml(run_dir / "overrides.yaml"), "recipe") or default_recipe())


def default_recipe() -> str:
    """Return the name of the recipe that ``asr-train`` has without ``recipe=``."""
    defaults = read_yaml(CONFIGS / "train.yaml")["defaults"]
    return next(str(item["recipe"]) for item in defaults if "recipe" in item)


def _shown(value: object) -> str:
    return "null" if value is None else str(value)
