"""Options that follow from a pretrained model, from the weights to start from, and from classes of the user's own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

import asr.recipes
from asr.console import PlainConsole
from asr.data.preparation.saved_corpus import Choice
from asr.plain_data import at, is_within
from asr.processes import is_first_process
from asr.run.command_line import CONFIGS, added_config_folders, override_key, override_value
from asr.run.data import source_corpus
from asr.run.parts import SPECIAL_KEYS, locate, part, plain, takes
from asr.run.start import OF_FILE
from asr.text.tokenizer import case_that_is_known, tokenizer_from_state, unknown_characters
from asr.training.checkpoints import LoadedCheckpoint

# where a config has a rate that weights know, and the key that sets it
RATES = {
    "data.sampling_rate_hz": ("features", "sampling_rate_hz"),
    "encoder.subsampling_factor": ("encoder", "subsampling_factor"),
}
TOKENIZER = ("tokenizer", "data.vocab_size")
LR_SHARE = 0.5  # of the rate for new weights; a fifth learned less on all corpora tried: recipes/custom/RESULTS.md


def source_rates(
    config: Mapping[str, Any], source: LoadedCheckpoint | None, overridden: Collection[str]
) -> list[Choice]:
    """Return the rates of features and encodings that the weights of a source know, where this run has others.

    Args:
        config: of a new run.
        source: what it starts from.
        overridden: keys that the command line names, which keep their values.
    """
    if source is None:
        return []
    options = [key for key in overridden if key != "encoder"]  # encoder=conformer_xs says no rate
    return [
        Choice(key, rate, f"as in {config['init']['path']}")
        for key, place in RATES.items()
        if not is_within(key, options)
        and type(rate := at(source.config, *place)) is int
        and type(run_rate := at(config, *place)) is int
        and rate != run_rate
    ]


def fine_tuning(config: DictConfig, source: LoadedCheckpoint | None, overridden: Collection[str]) -> Iterator[Choice]:
    """Yield the choice of a tokenizer, and of a learning rate, for a run that starts from trained weights.

    Args:
        config: of a new run.
        source: what it starts from; None: nothing, or weights without a tokenizer.
        overridden: keys that the command line names, which keep their values.

    Raises:
        ValueError: the corpus, or the tokenizer of the source, cannot be used.
    """
    if source is None:
        return
    keep_tokenizer, is_file = config.init.keep_tokenizer, OmegaConf.select(config, "tokenizer._target_") == OF_FILE
    own_tokenizer = is_file or any(is_within(key, TOKENIZER) for key in overridden)
    if keep_tokenizer is None and not own_tokenizer:
        tokenizer = tokenizer_from_state(source.tokenizer)
        share, most = unknown_characters(tokenizer, _training_texts(plain(config)))
        keep_tokenizer = not most
        lacking = f"{share:.2%} of the characters of the training texts, such as {' '.join(map(repr, most))}"
        if case := case_that_is_known(tokenizer, most):
            lacking += f"; it can spell most of them with {case}, which keeps it and its trained head"
        reason = "can spell the training texts" if keep_tokenizer else f"cannot spell {lacking}"
        yield Choice("init.keep_tokenizer", keep_tokenizer, f"that of the source {reason}")
    # a value that nobody has set is an interpolation of our configs
    is_open = OmegaConf.is_interpolation(config.optimizer, "lr")
    if keep_tokenizer and is_open and not any(is_within(key, ["best_lr"]) for key in overridden):
        usual = config.optimizer.lr
        reason = f"{LR_SHARE:g} of the usual {usual:g}, because encoder and head are already trained"
        yield Choice("optimizer.lr", float(f"{usual * LR_SHARE:.3g}"), reason)


def _training_texts(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the normalized transcripts of the training split."""
    normalize = part(config, "data.text")
    for chunk in source_corpus(config).chunks("train"):
        for segment in map(json.loads, chunk.segments):
            with contextlib.suppress(ValueError):  # half of a surrogate pair: the utterance will be dropped
                yield normalize(segment.get("text") or "")


RULE_KEYS = ("pattern", "lr_scale", "optimizer")  # the others are options of the optimizer

console = PlainConsole(quiet=not is_first_process())


def drop_replaced_defaults(
    config: DictConfig, overrides: Sequence[str], choices: Mapping[str, Any] | None = None
) -> None:
    """Remove keys that only our configs give, and that the class in ``_target_`` does not take; say each.

    What the user has given stays, and is refused if the class does not take it. An optimizer in the place of the chosen
    one keeps nothing else: the rate and the parameter rules of one optimizer are wrong for another.

    Args:
        config: of a new run, composed; changed in place.
        overrides: of the command line.
        choices: of groups, as Hydra knows them; None: those of the command line.

    Raises:
        ConfigError: a class is not found.
    """
    groups = _choices_of(overrides) if choices is None else {str(group): str(name) for group, name in choices.items()}
    chosen = [f"{group}={name}" for group, name in groups.items() if _is_ours(group, name)]
    raw: Any = OmegaConf.to_container(config)
    has_user_config = len(chosen) < len([group for group in groups if not group.startswith("hydra/")])
    if not has_user_config and not any("_target_" in word for word in overrides):
        return
    defaults: Any = OmegaConf.to_container(compose("train", overrides=chosen))
    replaced = [*_replaced(raw, defaults)]
    with open_dict(config):
        if "optimizer" in replaced and ("optimizer" not in groups or _is_ours("optimizer", groups["optimizer"])):
            replaced.remove("optimizer")
            _keep_given(config, groups, overrides)
        elif raw["parameter_rules"] == defaults["parameter_rules"] and raw["optimizer"] != defaults["optimizer"]:
            _drop_rules(config)
        for key in replaced:
            _drop_keys(config, key, defaults, _given_options(overrides, key))


def _choices_of(overrides: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in overrides)
    return {key: name for key, _, name in pairs if key == "recipe" or (CONFIGS / key).is_dir()}


def _is_ours(group: str, name: str) -> bool:
    folder = Path(asr.recipes.__path__[0]) if group == "recipe" else CONFIGS / group
    return not group.startswith("hydra/") and (folder / f"{name}.yaml").is_file()


def _replaced(config: Any, defaults: Any, key: str = "") -> Iterator[str]:
    """Yield the keys where a config names another class than the defaults do."""
    if not isinstance(config, Mapping) or not isinstance(defaults, Mapping):
        return
    if "_target_" in config and config["_target_"] != defaults.get("_target_", config["_target_"]):
        yield key
        return
    for name in config.keys() & defaults.keys():
        yield from _replaced(config[name], defaults[name], f"{key}.{name}" if key else str(name))


def _given_options(overrides: Sequence[str], key: str) -> set[str]:
    """Return the options of a part of the config that the command line gives, one by one or as a mapping."""
    mapping = override_value(overrides, key)
    keys = [override_key(word).removeprefix(f"{key}.") for word in overrides if word.lstrip("+~").startswith(f"{key}.")]
    return {name.partition(".")[0] for name in keys} | {*(mapping if isinstance(mapping, dict) else ())}


def _keep_given(config: DictConfig, choices: Mapping[str, str], overrides: Sequence[str]) -> None:
    """Keep only the optimizer options and parameter rules that the user has set, on the command line or in a recipe."""
    folders = added_config_folders(HydraConfig.get().runtime.config_sources) if HydraConfig.initialized() else []
    recipe = [f"recipe={choices['recipe']}"] if "recipe" in choices else []
    # what the user's recipe sets, apart from its choice of an optimizer
    recipe_config = compose("train", overrides=[*folders, *recipe, "~optimizer"])
    given_options = SPECIAL_KEYS | {*(recipe_config.get("optimizer") or ())} | _given_options(overrides, "optimizer")
    for name in [name for name in config.optimizer if name not in given_options]:
        del config.optimizer[name]
    usual = OmegaConf.load(CONFIGS / "parameter_rules" / "no_decay.yaml")
    if recipe_config.parameter_rules == usual and not any(
        override_key(word).startswith("parameter_rules") for word in overrides
    ):
        config.parameter_rules.rules = []


def _drop_keys(config: DictConfig, key: str, defaults: Any, given_options: Collection[str]) -> None:
    node, default = OmegaConf.select(config, key), at(defaults, *key.split("."))
    target = locate(node["_target_"], key)
    options: Any = OmegaConf.to_container(node)
    left_out = [
        name
        for name in options
        if name not in SPECIAL_KEYS
        and name in default
        and options[name] == default[name]
        and name not in given_options
        and not takes(target, name)
    ]
    for name in left_out:
        del node[name]
    if left_out:
        remaining = ", ".join(str(name) for name in node if name not in SPECIAL_KEYS) or "none"
        console.print_line(f"{key}: options that {node['_target_']} lacks: {', '.join(left_out)}; kept: {remaining}")


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
