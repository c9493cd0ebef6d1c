"""A composed config → the parts of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from asr.cli.errors import ConfigError
from asr.cli.instantiate import Configured, instantiate
from asr.data.features import Features
from asr.data.loading.loader import Workers
from asr.data.loading.sampling import BucketingConfig
from asr.data.preparation.cuts import Limits
from asr.features.normalise import GlobalNorm
from asr.models.initialise import initialise
from asr.models.recogniser import Recogniser
from asr.text.normalise import TextNormalizer
from asr.training.module import Decoder, OptimizerFactory, ScheduleFactory

OPTIONAL = ("augment.audio", "augment.features")


def plain(config: DictConfig) -> dict[str, Any]:
    """Return the config as resolved dicts, lists and values."""
    container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def part(config: Mapping[str, Any], key: str, **arguments: Any) -> Any:
    """Build what stands under a dotted key; null gives None where a run can do without.

    Raises:
        ConfigError: the key is missing, null, or holds no options, or what it holds is refused.
    """
    node: Any = config
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            raise ConfigError(f"{key} is missing in the config")
        node = node[name]
    if node is None and key in OPTIONAL:
        return None
    if node is None:
        raise ConfigError(f"{key} must not be null")
    if not isinstance(node, Mapping):
        raise ConfigError(f"{key} must hold _target_ and options, given {node!r}")
    return instantiate(node, key, **arguments)


@dataclass(frozen=True)
class DataParts:
    """What turns a corpus into batches."""

    features: Features
    text: TextNormalizer
    limits: Limits
    batch: BucketingConfig
    workers: Workers
    perturb: Any
    tokenizer_trainer: Any


def data_parts(config: Mapping[str, Any]) -> DataParts:
    """Build the parts of the data side."""
    features = part(config, "features")
    perturb = part(config, "augment.audio")
    if perturb is not None and features.precomputed:
        raise ConfigError("augment.audio changes the audio, but features are stored; choose augment.audio=null")
    return DataParts(
        features=features,
        text=part(config, "data.text"),
        limits=part(config, "data.limits"),
        batch=part(config, "data.batch"),
        workers=part(config, "data.workers"),
        perturb=perturb,
        tokenizer_trainer=part(config, "tokenizer"),
    )


def build_encoder(config: Mapping[str, Any], num_features: int) -> Any:
    """Build the encoder for features of a given width."""
    return part(config, "encoder", num_features=num_features)


def build_recogniser(
    config: Mapping[str, Any], vocab_size: int, mean: Sequence[float], std: Sequence[float]
) -> Recogniser:
    """Build the recogniser with fresh weights that depend on ``config["seed"]`` and the shapes alone."""
    recogniser = _uninitialised(config, vocab_size, GlobalNorm(mean, std), contextlib.nullcontext())
    initialise(recogniser)
    return recogniser


def outline_recogniser(config: Mapping[str, Any], vocab_size: int, num_features: int) -> Recogniser:
    """Build the recogniser with weights that have shapes and no values: it takes no memory, and no time to fill it."""
    normalise = GlobalNorm([0.0] * num_features, [1.0] * num_features)
    return _uninitialised(config, vocab_size, normalise, torch.device("meta"))


def _uninitialised(
    config: Mapping[str, Any],
    vocab_size: int,
    normalise: GlobalNorm,
    place: torch.device | contextlib.nullcontext[None],
) -> Recogniser:
    torch.manual_seed(config["seed"])
    with place:
        encoder = build_encoder(config, len(normalise.mean))
        head = part(config, "head", d_model=encoder.d_model, vocab_size=vocab_size)
    augment = part(config, "augment.features")
    try:
        return Recogniser(encoder, head, normalise, augment)
    except ValueError as error:
        raise ConfigError(f"head: {error}") from error


@dataclass(frozen=True)
class UpdateParts:
    """What turns gradients into updates, and log-probabilities into text."""

    optimizer_factory: OptimizerFactory
    schedule_factory: ScheduleFactory
    decoder: Decoder


def update_parts(config: Mapping[str, Any]) -> UpdateParts:
    """Build the factories of optimizer and schedule, and the decoder."""
    optimizer = part(config, "optimizer")
    return UpdateParts(
        optimizer_factory=Configured(part(config, "parameter_rules", optimizer=optimizer), {}, "parameter_rules"),
        schedule_factory=part(config, "schedule"),
        decoder=part(config, "decoder"),
    )
