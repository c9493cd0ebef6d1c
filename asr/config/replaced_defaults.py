"""Leaves out what our configs say for a class that the user has replaced by another one, which does not take it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

import asr.recipes
from asr.config.command_line import added_config_folders, override_key, override_value
from asr.config.help import CONFIGS
from asr.config.instantiate import SPECIAL_KEYS, locate, takes
from asr.console import PlainConsole
from asr.plain_data import at, is_within
from asr.processes import is_first_process

RULE_KEYS = ("pattern", "lr_scale", "optimizer")  # the others are options of the optimizer

console = PlainConsole(quiet=not is_first_process())


def drop_replaced_defaults(config: DictConfig, words: Sequence[str], choices: Mapping[str, Any] | None = None) -> None:
    """Remove keys that only our configs give, and that the class in ``_target_`` does not take; say each.

    What the user has given stays, and is refused if the class does not take it. An optimizer in the place of the chosen
    one keeps nothing else: the rate and the parameter rules of one optimizer are wrong for another.

    Args:
        config: of a new run, composed; changed in place.
        words: overrides of the command line.
        choices: of groups, as Hydra knows them; None: those of the command line.

    Raises:
        ConfigError: a class is not found.
    """
    given = _choices_of(words) if choices is None else {str(group): str(name) for group, name in choices.items()}
    chosen = [f"{group}={name}" for group, name in given.items() if _is_ours(group, name)]
    raw: Any = OmegaConf.to_container(config)
    theirs = len(chosen) < len([group for group in given if not group.startswith("hydra/")])
    if not theirs and not any("_target_" in word for word in words):
        return
    ours: Any = OmegaConf.to_container(compose("train", overrides=chosen))
    replaced = [*_replaced(raw, ours)]
    with open_dict(config):
        if "optimizer" in replaced and ("optimizer" not in given or _is_ours("optimizer", given["optimizer"])):
            replaced.remove("optimizer")
            _keep_given(config, given, words)
        elif raw["parameter_rules"] == ours["parameter_rules"] and raw["optimizer"] != ours["optimizer"]:
            _drop_rules(config)
        for key in replaced:
            _drop_keys(config, key, ours, _given_options(words, key))


def _choices_of(words: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words)
    return {key: name for key, _, name in pairs if key == "recipe" or (CONFIGS / key).is_dir()}


def _is_ours(group: str, name: str) -> bool:
    folder = Path(asr.recipes.__path__[0]) if group == "recipe" else CONFIGS / group
    return not group.startswith("hydra/") and (folder / f"{name}.yaml").is_file()


def _replaced(given: Any, ours: Any, key: str = "") -> Iterator[str]:
    """Yield the places where a config names another class than ours does."""
    if not isinstance(given, Mapping) or not isinstance(ours, Mapping):
        return
    if "_target_" in given and given["_target_"] != ours.get("_target_", given["_target_"]):
        yield key
        return
    for name in given.keys() & ours.keys():
        yield from _replaced(given[name], ours[name], f"{key}.{name}" if key else str(name))


def _given_options(words: Sequence[str], key: str) -> set[str]:
    """Return the options of a part of the config that the command line gives, one by one or as a mapping."""
    mapping = override_value(words, key)
    names = [override_key(word).removeprefix(f"{key}.") for word in words if word.lstrip("+~").startswith(f"{key}.")]
    return {name.partition(".")[0] for name in names} | {*(mapping if isinstance(mapping, dict) else ())}


def _keep_given(config: DictConfig, choices: Mapping[str, str], words: Sequence[str]) -> None:
    """Keep of the options of optimizer and parameter rules only what the user has given: here or in a recipe."""
    folders = added_config_folders(HydraConfig.get().runtime.config_sources) if HydraConfig.initialized() else []
    recipe = [f"recipe={choices['recipe']}"] if "recipe" in choices else []
    # what a recipe of the user's says beside its choice of an optimizer
    theirs = compose("train", overrides=[*folders, *recipe, "~optimizer"])
    kept = SPECIAL_KEYS | {*(theirs.get("optimizer") or ())} | _given_options(words, "optimizer")
    for name in [name for name in config.optimizer if name not in kept]:
        del config.optimizer[name]
    usual = OmegaConf.load(CONFIGS / "parameter_rules" / "no_decay.yaml")
    if theirs.parameter_rules == usual and not any(override_key(word).startswith("parameter_rules") for word in words):
        config.parameter_rules.rules = []


def _drop_keys(config: DictConfig, key: str, ours: Any, given_options: Collection[str]) -> None:
    node, default = OmegaConf.select(config, key), at(ours, *key.split("."))
    target = locate(node["_target_"], key)
    given: Any = OmegaConf.to_container(node)
    left_out = [
        name
        for name in given
        if name not in SPECIAL_KEYS
        and name in default
        and given[name] == default[name]
        and name not in given_options
        and not takes(target, name)
    ]
    for name in left_out:
        del node[name]
    if left_out:
        kept = ", ".join(str(name) for name in node if name not in SPECIAL_KEYS) or "none"
        console.print_line(f"{key}: options that {node['_target_']} lacks: {', '.join(left_out)}; kept: {kept}")


def _drop_rules(config: DictConfig) -> None:
    """Leave out of our parameter rules the options that an optimizer does not take, and rules without any."""
    name = config.optimizer["_target_"]
    if is_within(name, ["optim"]):
        return  # they know what the rules are called for them
    target, rules = locate(name, "optimizer"), []
    for rule in config.parameter_rules.rules:
        options = [option for option in rule if option not in RULE_KEYS]
        lacking = [option for option in options if "optimizer" not in rule and not takes(target, option)]
        for option in lacking:
            console.print_line(f"parameter_rules: {name} lacks {option}: ignored in the rule {rule.pattern!r}")
            del rule[option]
        if not lacking or len(lacking) < len(options) or "lr_scale" in rule:
            rules.append(rule)
    config.parameter_rules.rules = rules
