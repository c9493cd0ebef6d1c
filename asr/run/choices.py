"""Options that follow from a pretrained model, from the weights to start from, and from classes of the user's own."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from hydra import compose

from asr.data.preparation.saved_corpus import Budget, Choice, CorpusFacts
from asr.run import start
from asr.run.command_line import CONFIGS
from asr.run.compose import DECLARING, OWN_GROUPS, Composed, choose_own, named_classes, run_folder, saved_config
from asr.run.data import complete_sources, source_corpus
from asr.run.instantiate import SPECIAL_KEYS, build_component, check_keys, locate, takes, with_defaults
from asr.run.options import Data, Encoder, RunOptions
from asr.run.parts import build_encoder
from asr.run.trust import error_context, trust_own
from asr.text.tokenizer import case_that_is_known, tokenizer_from_state, unknown_characters
from asr.training.checkpoints import LoadedCheckpoint
from asr.training.processes import console
from werdict.errors import ConfigError, did_you_mean
from werdict.files import get_nested, is_within, named_path, read_yaml

# one of them alone would make too few, or too many, passes over a corpus
LENGTH = ("trainer.max_steps", "trainer.max_epochs", "data.batch.max_duration_s")
RATES = ("data.sampling_rate_hz", "encoder.subsampling_factor")  # of features and encodings, which weights know
TOKENIZER = ("tokenizer", "data.vocab_size")
LR_SHARE = 0.5  # of the rate for new weights; a fifth learned less on all corpora tried: recipes/custom/RESULTS.md


def choose_by_words(composed: Composed) -> tuple[Composed, LoadedCheckpoint | None]:
    """Return a config with what follows from own classes, a pretrained model, and the source of weights; each is said.

    Args:
        composed: of the words of the user.

    Returns:
        Beside it, the source of weights of a new run.

    Raises:
        ValueError: an option is refused.
    """
    options: RunOptions = composed.options
    if options.data.sources is not None:
        composed = composed.with_values({"data.sources": complete_sources(options.data)})
    composed = with_own_classes(composed)
    options = composed.options
    if options.resume is not None:  # all else is in the run's own config
        if "encoder.model" in composed.given:
            saved = Encoder.of(saved_config(run_folder(options.resume))["encoder"])
            base = start.base_folder(saved, options.encoder.model)
            composed = composed.with_values({"encoder.model_folder": base, "encoder.model": saved.model})
        return composed, None
    for name in options.best_lr:
        if name not in composed.optimizers:
            raise ConfigError(f"best_lr.{name}: there is no such optimizer.{did_you_mean(name, composed.optimizers)}")
    if options.encoder.target == start.PRETRAINED:
        composed = with_choices(composed, pretrained_choices(composed))
    path = composed.options.init.path
    if path is None or path.endswith(start.ICEFALL):
        return composed, None
    source = start.load_source(path)
    return with_choices(composed, source_rates(composed, source)), source


def choose_by_corpus(composed: Composed, source: LoadedCheckpoint | None) -> Composed:
    """Return a config with what follows from the corpus of a new run; each is said.

    Args:
        composed: as `choose_by_words` returns it.
        source: of weights.

    Raises:
        ValueError: the corpus cannot be used.
    """
    if composed.options.data.by_corpus and composed.options.resume is None:
        composed = with_choices(composed, corpus_choices(composed))
    return composed if source is None else with_choices(composed, fine_tuning(composed, source))


def corpus_choices(composed: Composed) -> list[Choice]:
    """Return what a recipe's prepare function chooses for the corpus; advice is printed.

    Args:
        composed: of a new run with ``data.by_corpus``; keys that the user has given keep their values.

    Raises:
        ValueError: the corpus cannot be used.
    """
    options: RunOptions = composed.options
    prepare = build_component(options.data.prepare, "data.prepare", partial=True)
    choose: Any = getattr(getattr(prepare, "func", None), "choose", None)
    if choose is None or options.data.sources is not None:
        if "data.by_corpus" in composed.given:
            raise ConfigError("data.by_corpus: this recipe, or mixture, has no choices by corpus; leave it out")
        return []
    budget = Budget(options.trainer.max_steps, options.data.batch.max_duration_s)
    given = [key for key in composed.given if key != "encoder"]  # encoder=conformer_xs says nothing of the corpus
    fixed_keys = [*given, *(LENGTH if any(is_within(key, given) for key in LENGTH) else ())]
    if options.init.path is not None:
        fixed_keys += RATES  # those of its weights are taken
    if options.encoder.target == start.PRETRAINED:
        fixed_keys += start.FOLLOWING
    if "tokenizer" in given:
        fixed_keys.append("encoder.subsampling_factor")  # it follows from characters as tokens
    choices = list(choose(CorpusFacts.of(source_corpus(options.data)), budget))
    for advice in choices:
        if isinstance(advice, str):
            console.print_line(f"note: {advice}")
    return [choice for choice in choices if isinstance(choice, Choice) and not is_within(choice.key, fixed_keys)]


def with_choices(composed: Composed, choices: Iterable[Choice]) -> Composed:
    """Return the composed config with options, and groups, whose value is the name of a choice; say each."""
    values = {}
    for choice in choices:
        # an option that this encoder lacks belongs to another one
        if not composed.has(choice.key):
            continue
        is_group = isinstance(choice.value, str) and (CONFIGS / choice.key).is_dir()
        values[choice.key] = read_yaml(CONFIGS / choice.key / f"{choice.value}.yaml") if is_group else choice.value
        if choice.reason:  # others only record
            shown = choice.value if isinstance(choice.value, str) else json.dumps(choice.value)
            console.print_line(f"chosen: {choice.key}={shown}  ({choice.reason})")
    return composed.with_values(values) if values else composed


def source_rates(composed: Composed, source: LoadedCheckpoint) -> list[Choice]:
    """Return the rates of features and encodings that the weights of a source know, where this run has others.

    Args:
        composed: of a new run; keys that the user has given keep their values.
        source: what it starts from.
    """
    given = [key for key in composed.given if key != "encoder"]  # encoder=conformer_xs says no rate
    options, saved = composed.options, start.source_options(source)
    parts = (options.features, saved.features), (options.encoder, saved.encoder)
    rates = []
    for key, (here, there) in zip(RATES, parts, strict=True):
        rate, run_rate = (getattr(part, key.partition(".")[2], None) for part in (there, here))
        if type(rate) is int and type(run_rate) is int and rate != run_rate and not is_within(key, given):
            rates.append(Choice(key, rate, f"as in {options.init.path}"))
    return rates


def fine_tuning(composed: Composed, source: LoadedCheckpoint) -> Iterator[Choice]:
    """Yield the choice of a tokenizer, and of a learning rate, for a run that starts from trained weights.

    Args:
        composed: of a new run; keys that the user has given keep their values.
        source: what it starts from.

    Raises:
        ValueError: the corpus, or the tokenizer of the source, cannot be used.
    """
    options: RunOptions = composed.options
    keep_tokenizer = options.init.keep_tokenizer
    own_tokenizer = options.tokenizer.target == start.OF_FILE or any(
        is_within(key, TOKENIZER) for key in composed.given
    )
    if keep_tokenizer is None and not own_tokenizer:
        tokenizer = tokenizer_from_state(source.tokenizer)
        share, most = unknown_characters(tokenizer, _training_texts(options.data))
        keep_tokenizer = not most
        lacking = f"{share:.2%} of the characters of the training texts, such as {' '.join(map(repr, most))}"
        if case := case_that_is_known(tokenizer, most):
            lacking += f"; it can spell most of them with {case}, which keeps it and its trained head"
        reason = "can spell the training texts" if keep_tokenizer else f"cannot spell {lacking}"
        yield Choice("init.keep_tokenizer", keep_tokenizer, f"that of the source {reason}")
    # a value that nobody has set is an interpolation of our configs
    is_open = composed.is_interpolation("optimizer.lr")
    if keep_tokenizer and is_open and not any(is_within(key, ["best_lr"]) for key in composed.given):
        usual = options.optimizer.lr
        reason = f"{LR_SHARE:g} of the usual {usual:g}, because encoder and head are already trained"
        yield Choice("optimizer.lr", float(f"{usual * LR_SHARE:.3g}"), reason)


def pretrained_choices(composed: Composed) -> Iterator[Choice]:
    """Yield what a run records of its pretrained encoder, and the options that follow from it.

    Args:
        composed: of a new run; keys that the user has given keep their values.

    Raises:
        ConfigError: there is no such model, or it cannot be fetched.
    """
    # transformers is an extra
    from asr.models.encoders.pretrained import FRAMES_HZ, WHISPER, WITH_MASKS
    from asr.models.pretrained import describe, find_snapshot

    options: RunOptions = composed.options
    encoder, given = options.encoder, composed.given
    if options.trainer.compile:
        raise ConfigError("trainer.compile=true: layers of transformers are not compiled here; leave it out")
    with error_context("encoder.model", describe):
        source = describe(str(encoder.model))
        yield Choice("encoder.source", source)
        is_folder = (folder := named_path(encoder.model)).is_dir()
        folder_name = str(folder.resolve()) if is_folder else encoder.model_folder
        yield Choice("encoder.model_folder", folder_name)
        if options.init.path == encoder.model:  # a name of the hub is no path
            yield Choice("init.path", str(find_snapshot(str(encoder.model)).folder))
    inputs, kind = json.loads(source["inputs"]), json.loads(source["config"])["model_type"]
    rate_hz = inputs.get("sampling_rate", 16_000)
    reason = f"as {encoder.model} takes it, a {kind} with the licence {source['license']}"
    if options.features.target != start.WAVEFORM and "features" not in given:
        yield Choice("features", "waveform", reason)
    if options.data.sampling_rate_hz != rate_hz and "data.sampling_rate_hz" not in given:
        yield Choice("data.sampling_rate_hz", rate_hz, reason)
    if options.augment.features is not None and not any(is_within(key, ["augment.features"]) for key in given):
        yield Choice("augment.features", None, "it would mask audio; encoder.masks masks encodings")
    places = [key for key in given if key != "encoder"]  # encoder=pretrained says nothing of masks
    masks = {key: value for key, value in (encoder.masks or {}).items() if is_within(f"encoder.masks.{key}", places)}
    if kind not in (*WITH_MASKS, WHISPER) and masks != encoder.masks:
        encoder = encoder.updated(masks=masks or None)
        yield Choice("encoder.masks", masks or None, f"nothing of a {kind} can be masked")
    with torch.device("meta"):
        outline = build_encoder(encoder.updated(source=source, model_folder=folder_name), rate_hz // FRAMES_HZ)
    if unused := [re.escape(name) for name in start.without_gradient(outline) if ".lora_" not in name]:
        yield Choice("init.freeze", [*options.init.freeze, *unused], f"a {kind} has these weights, but never uses them")


def _training_texts(data: Data) -> Iterator[str]:
    """Yield the normalized transcripts of the training split."""
    normalize = build_component(data.text, "data.text")
    for chunk in source_corpus(data).chunks("train"):
        for segment in map(json.loads, chunk.segments):
            with contextlib.suppress(ValueError):  # half of a surrogate pair: the utterance will be dropped
                yield normalize(segment.get("text") or "")


RULE_KEYS = ("pattern", "lr_scale", "optimizer")  # the others are options of the optimizer


def with_own_classes(composed: Composed) -> Composed:
    """Return a config without what the user's own classes do not take, with the defaults of ours, which are recorded.

    Packages that the user has named are trusted.

    Raises:
        ConfigError: a class is not found, or optimizer or schedule have no such option; a sweep says so before its
            first job.
    """
    is_new = composed.options.resume is None
    if is_new:
        composed = with_own_choices(composed)
    config = composed.unresolved()
    nodes = {key: config[key] for key in DECLARING}
    if is_new:
        trust_own(config)
        for key, node in nodes.items():
            check_keys(locate(node["_target_"], key), node.keys() - SPECIAL_KEYS, key, partial=True)
    return composed.with_values({key: with_defaults(node, key) for key, node in nodes.items()})


def with_own_choices(composed: Composed) -> Composed:
    """Return a config without options of ours that the classes of the user do not take; each is printed.

    What the command line gives stays, and is refused if the class does not take it. Where a recipe names another class
    than its choice does, the config is composed again with ``own`` in the place of the choice.

    Args:
        composed: of a new run.

    Raises:
        ConfigError: a class is not found.
    """
    chosen = (CONFIGS / group / f"{name}.yaml" for group, name in composed.groups.items() if "/" not in group)
    if all(file.is_file() for file in chosen) and not named_classes(composed.words):
        return composed  # all classes are those of our choices
    raw, replaced = composed.unresolved(), []
    for group in OWN_GROUPS:
        target = get_nested(raw, group, "_target_")
        usual = (composed.usual(group) or {}).get("_target_", target)
        if usual != target and (group == "optimizer" or group not in composed.given):
            replaced.append(group)
    if replaced:
        overrides = [*composed.folders, *choose_own(composed.words, replaced)]
        composed = replace(composed, config=compose("train", overrides))
    taken = _taken_options(composed) | _taken_rules(composed)
    return composed.with_values(taken) if taken else composed


def _taken_options(composed: Composed) -> dict[str, Any]:
    """Return the parts whose class the command line names without options of ours that the class lacks; say which."""
    raw, taken = composed.unresolved(), {}
    for key, given in named_classes(composed.words).items():
        node = get_nested(raw, *key.split("."))
        target = locate(node["_target_"], key)
        names = [name for name in node if name not in SPECIAL_KEYS]
        if lacking := [name for name in names if name not in given and not takes(target, name)]:
            taken[key] = {name: value for name, value in node.items() if name not in lacking}
            remaining = ", ".join(name for name in names if name not in lacking) or "none"
            console.print_line(f"{key}: options that {node['_target_']} lacks: {', '.join(lacking)}; kept: {remaining}")
    return taken


def _taken_rules(composed: Composed) -> dict[str, Any]:
    """Return our parameter rules without options that the optimizer does not take, and without rules of none."""
    raw, taken = composed.unresolved(), []
    name = raw["optimizer"]["_target_"]
    if is_within(str(name), ["optim"]) or composed.usual("parameter_rules") != raw["parameter_rules"]:
        return {}  # optimizers of ours know what the rules are called for them
    target = locate(name, "optimizer")
    for rule in raw["parameter_rules"]["rules"]:
        options = [option for option in rule if option not in RULE_KEYS]
        lacking = [option for option in options if "optimizer" not in rule and not takes(target, option)]
        for option in lacking:
            console.print_line(f"parameter_rules: {name} lacks {option}: ignored in the rule {rule['pattern']!r}")
        if not lacking or len(lacking) < len(options) or "lr_scale" in rule:
            taken.append({key: value for key, value in rule.items() if key not in lacking})
    return {"parameter_rules.rules": taken}
