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


def check_effects(config: DictConfig, node: Any) -> None:
    """Refuse what acts only in a sweep or a resumption, outside of them, and what nothing reads.

    Args:
        config: of ``asr-train``, composed.
        node: Hydra's own.

    Raises:
        ConfigError: names the option and what it belongs to.
    """
    if node.mode != RunMode.MULTIRUN and JOB_VARIABLE not in os.environ:
        for word in (*node.overrides.task, *node.overrides.hydra):
            if is_within(override_key(word), SWEEP_KEYS):
                raise ConfigError(f"{word}: this is for sweeps, and does nothing without -m: asr-train -m {word} …")
        check_vocab_size(config, node.overrides.task)
    if config.resume is not None:
        return
    for key in RESUME_KEYS:
        if config[key]:
            raise ConfigError(f"{key}=true is for resuming a run, and does nothing without resume=RUN; leave it out")
    _check_rates(config, node)


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
