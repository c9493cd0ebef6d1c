"""Refuses options that would do nothing as they were given: who types one expects an effect."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig

from asr.cli.config.help import choices
from asr.cli.config.words import override_key
from asr.cli.errors import ConfigError, did_you_mean
from asr.nested import is_within

JOB_VARIABLE = "WERDICT_SWEEP_JOB"  # in the environment of a sweep's jobs, which are told its words
SWEEP_KEYS = ("sweep", "hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper", "hydra.sweep")
RESUME_KEYS = ("allow_changes", "resume_logger")
# options of decoders, and those that name the file which they are about
ABOUT_FILES = {"decoder.lm_weight": "lm", "decoder.lodr_weight": "lodr", "decoder.hotword_boost": "hotwords"}


def check_effects(config: DictConfig, node: Any) -> None:
    """Refuse what acts only in a sweep or a resumption, outside of them, and what nothing reads.

    Args:
        config: of ``asr-train``, composed.
        node: Hydra's own.

    Raises:
        ConfigError: names the option and what it belongs to.
    """
    if node.mode != RunMode.MULTIRUN and JOB_VARIABLE not in os.environ:
        for word in _typed(node, SWEEP_KEYS):
            raise ConfigError(f"{word}: this is for sweeps, and does nothing without -m: asr-train -m {word} …")
        check_vocab_size(config, node.overrides.task)
    if config.resume is not None:
        check_measuring(config, "resume=RUN")
        return
    for key in RESUME_KEYS:
        if config[key]:
            raise ConfigError(f"{key}=true is for resuming a run, and does nothing without resume=RUN; leave it out")
    _check_rates(config, node)


def check_no_sweep(command: str, node: Any) -> None:
    """Refuse typed options of sweeps for a command that has none.

    Args:
        command: such as ``prepare``, whose config is that of ``train``; the key ``sweep`` of ``compare`` is its own.
        node: Hydra's own.

    Raises:
        ConfigError: names the first.
    """
    for word in _typed(node, [key for key in SWEEP_KEYS if key != "sweep" or command == "prepare"]):
        raise ConfigError(f"{word}: this is for sweeps of asr-train; asr-{command} runs once: leave it out")


def _typed(node: Any, keys: Sequence[str]) -> list[str]:
    return [word for word in (*node.overrides.task, *node.overrides.hydra) if is_within(override_key(word), keys)]


def check_measuring(config: DictConfig, beside: str) -> None:
    """Refuse to measure batch sizes where a run is asked for, because measuring makes none.

    Args:
        config: of ``asr-train``, composed.
        beside: what asks for a run.

    Raises:
        ConfigError: batch sizes would be measured.
    """
    if config.find_batch_size:
        raise ConfigError(f"find_batch_size=true measures instead of training; give it without {beside}")


def check_scorers(config: DictConfig, words: Sequence[str]) -> None:
    """Refuse typed options of a decoder that was not chosen, and weights of what it has not been given.

    Args:
        config: of a command, composed; decoders of some have no such options.
        words: overrides of the command line.

    Raises:
        ConfigError: names the option, and the file that is missing.
    """
    for word in words:
        if override_key(word).startswith("decoder.") and "_target_" not in (config.get("decoder") or {}):
            raise ConfigError(f"{word}: this needs decoder=… too, of which none is chosen, such as decoder=ctc_beam")
        file = ABOUT_FILES.get(override_key(word))
        if file is not None and (config.get("decoder") or {}).get(file) is None:
            raise ConfigError(f"{word}: it does nothing without decoder.{file}=FILE; add that, or leave this out")


def check_vocab_size(config: DictConfig, words: Sequence[str]) -> None:
    """Refuse a typed number of tokens with a tokenizer that has no such option.

    Args:
        config: of ``asr-train``, composed.
        words: overrides of the command line.

    Raises:
        ConfigError: names the option.
    """
    typed = [word for word in words if override_key(word) == "data.vocab_size"]
    # subword tokenizers refer to it
    if typed and "vocab_size" not in (config.tokenizer or {}):
        raise ConfigError(
            f"{typed[-1]}: it is for subword tokenizers; tokenizer=char has one token per character. Leave it out, or "
            "choose tokenizer=bpe"
        )


def _check_rates(config: DictConfig, node: Any) -> None:
    folders = [Path(source.path) for source in node.runtime.config_sources if source.schema == "file"]
    known = [name for folder in folders for name in choices(folder, "optimizer")]
    for name in config.best_lr:
        if name not in known:
            raise ConfigError(
                f"best_lr.{name}: there is no such optimizer.{did_you_mean(str(name), known)} "
                f"Allowed: {', '.join(known)}."
            )
