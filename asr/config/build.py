"""A composed config → the parts of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from asr.config.help import CONFIGS
from asr.config.instantiate import Configured, instantiate, locate
from asr.config.own_code import at_work, is_foreign
from asr.data.features import Features
from asr.data.loading.augmentation import Acoustics
from asr.data.loading.loader import Workers
from asr.data.loading.sampling import BucketingConfig
from asr.data.preparation.cuts import Limits
from asr.data.preparation.prepared import PreparedData
from asr.decoding.greedy import Decoder
from asr.decoding.scorers import FILE_OPTIONS
from asr.errors import ConfigError
from asr.features.log_mel import GlobalNorm
from asr.models.heads.protocols import Head
from asr.models.recognizer import Recognizer, initialize, is_pretrained
from asr.plain_data import at
from asr.text.tokenizer import KeptTokenizer, SubwordTokenizer, Tokenizer
from asr.training.checkpoints import FORMAT
from asr.training.initial_weights import freeze

if TYPE_CHECKING:
    from asr.training.module import OptimizerFactory, ScheduleFactory, TrainingModule

OPTIONAL = ("augment.audio", "augment.features")
RESERVED = {"run_dir", "config"}  # arguments of loggers and callbacks that the program sets itself
PARTIAL = ("data.prepare", "optimizer", "schedule")  # for arguments that the program passes on later
ENCODER = ("d_model", "subsampling_factor", "output_frames")  # what a recognizer asks of an encoder of the user's own
TENSORBOARD = ("tensorboard", "tensorboardX")  # packages, of which one is enough
LONG_UTTERANCE = 0.95  # quantile of training utterances; longer parts of recordings would be decoded badly


def plain(config: DictConfig) -> dict[str, Any]:
    """Return the config as resolved dicts, lists and values."""
    container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def part(config: Mapping[str, Any], key: str, **arguments: Any) -> Any:
    """Build what a dotted key describes; null gives None if a run works without it.

    Raises:
        ConfigError: the key is missing, null, or holds no options, or what it holds is refused.
    """
    node = at(config, *key.split("."))
    if node is None and key in OPTIONAL:
        return None
    if node is None:
        raise ConfigError(f"{key} is missing in the config, or null")
    if not isinstance(node, Mapping):
        raise ConfigError(f"{key} must hold _target_ and options, given {node!r}")
    return instantiate({**node, "_partial_": key in PARTIAL}, key, **arguments)


@dataclass(frozen=True)
class DataParts:
    """What turns a corpus into batches."""

    features: Features
    text: Callable[[str], str]
    limits: Limits
    batch: BucketingConfig
    workers: Workers
    perturb: Any
    tokenizer_trainer: Any


def build_data_parts(config: Mapping[str, Any], tokenizer: Tokenizer | None = None) -> DataParts:
    """Build the parts of the data side.

    Args:
        config: of a run.
        tokenizer: to use; None: train one.
    """
    features = part(config, "features")
    perturb = part(config, "augment.audio")
    if perturb is not None and features.precomputed:
        raise ConfigError("augment.audio changes the audio, but features are stored; choose augment.audio=null")
    masks, content = part(config, "augment.features"), getattr(features, "content", "spectrum")
    if getattr(masks, "needs", None) not in (None, content):
        raise ConfigError(
            f"augment.features: {type(masks).__name__} needs features with content={masks.needs}, but those of "
            f"{type(features).__name__} have content={content}; choose augment.features=null"
        )
    limits, batch, workers = (part(config, f"data.{name}") for name in ("limits", "batch", "workers"))
    trainer = part(config, "tokenizer") if tokenizer is None else KeptTokenizer(tokenizer)
    text = build_text(config, trainer.tokenizer if isinstance(trainer, KeptTokenizer) else None)
    return DataParts(features, text, limits, batch, workers, perturb, trainer)


def build_text(config: Mapping[str, Any], tokenizer: Tokenizer | None) -> Callable[[str], str]:
    """Build the normalizer of transcripts, after which the rules of the user's own sentencepiece model rewrite them."""
    normalize: Callable[[str], str] = part(config, "data.text")
    return partial(tokenizer.rewritten, normalize) if isinstance(tokenizer, SubwordTokenizer) else normalize


def build_encoder(config: Mapping[str, Any], num_features: int) -> Any:
    """Build the encoder for features of a given width."""
    encoder = part(config, "encoder", num_features=num_features)
    if lacking := [name for name in ENCODER if not hasattr(encoder, name)]:
        raise ConfigError(
            f"encoder: {type(encoder).__name__} has no {', '.join(lacking)}; docs/your_own_code.md says what is needed"
        )
    return encoder


def build_recognizer(
    config: Mapping[str, Any], vocab_size: int, mean: Sequence[float], std: Sequence[float]
) -> Recognizer:
    """Build the recognizer with new weights that depend only on ``config["seed"]`` and the shapes."""
    recognizer = _uninitialized(config, vocab_size, GlobalNorm(mean, std), contextlib.nullcontext())
    initialize(recognizer)
    return recognizer


def outline_recognizer(config: Mapping[str, Any], vocab_size: int, num_features: int) -> Recognizer:
    """Build the recognizer without memory for weights: on the meta device, which classes of others may not know."""
    normalize = GlobalNorm([0.0] * num_features, [1.0] * num_features)
    place = contextlib.nullcontext() if is_own_model(config) else torch.device("meta")
    return _uninitialized(config, vocab_size, normalize, place)


def is_own_model(config: Mapping[str, Any]) -> bool:
    """Return whether encoder or head of a config are classes of the user's own."""
    return any(is_foreign(str(at(config, key, "_target_"))) for key in ("encoder", "head"))


def _uninitialized(
    config: Mapping[str, Any],
    vocab_size: int,
    normalize: GlobalNorm,
    place: torch.device | contextlib.nullcontext[None],
) -> Recognizer:
    torch.manual_seed(config["seed"])
    with place:
        encoder = build_encoder(config, len(normalize.mean))
        head = part(config, "head", d_model=encoder.d_model, vocab_size=vocab_size)
    augment = part(config, "augment.features")
    if is_pretrained(encoder):
        normalize = GlobalNorm([0.0] * len(normalize.mean), [1.0] * len(normalize.mean))
    with at_work("head", type(head)):
        return Recognizer(encoder, head, normalize, augment)


def build_decoder(config: Mapping[str, Any]) -> Decoder:
    """Build the decoder of a run's own config.

    Raises:
        ConfigError: it would read files, which a checkpoint does not hold.
    """
    node = config.get("decoder")
    for key in FILE_OPTIONS:
        if isinstance(node, Mapping) and node.get(key) is not None:
            raise ConfigError(
                f"decoder.{key} is for asr-evaluate and asr-transcribe: a run is decoded from its checkpoint alone; "
                f"leave it null, given {node[key]!r}"
            )
    decoder: Decoder = part(config, "decoder")
    return decoder


class UpdateParts(NamedTuple):
    """What turns gradients into updates, and log-probabilities into text."""

    optimizer_factory: OptimizerFactory
    schedule_factory: ScheduleFactory
    decoder: Decoder


def build_update_parts(config: Mapping[str, Any], optimizer_factory: OptimizerFactory | None = None) -> UpdateParts:
    """Build the factories of optimizer and schedule, and the decoder.

    Args:
        config: of the run.
        optimizer_factory: that is built already.
    """
    if optimizer_factory is None:
        optimizer_factory = _optimizer_factory(config)
    return UpdateParts(optimizer_factory, part(config, "schedule"), build_decoder(config))


def _optimizer_factory(config: Mapping[str, Any]) -> OptimizerFactory:
    rules = part(config, "parameter_rules", optimizer=part(config, "optimizer"))
    factory = Configured(rules, {}, "parameter_rules")
    if config["trainer"].get("step_in_backward", False):
        key = "trainer.step_in_backward"
        factory = Configured(locate("optim.step_in_backward", key), {"factory": factory}, key)
    return factory


def check_decoder(decoder: Decoder, head: Head) -> None:
    """Refuse a decoder that cannot search with a head.

    Raises:
        ConfigError: names the decoders that can.
    """
    if isinstance(head, decoder.needs):
        return
    targets = {file.stem: OmegaConf.load(file)._target_ for file in sorted((CONFIGS / "decoder").glob("*.yaml"))}
    fitting = [name for name, target in targets.items() if isinstance(head, locate(target, "decoder").needs)]
    raise ConfigError(
        f"decoder: {type(decoder).__name__} cannot search with {type(head).__name__}; choose decoder="
        f"{' or decoder='.join(fitting)}, or another head"
    )


def build_module(
    config: Mapping[str, Any],
    parts: DataParts,
    prepared: PreparedData,
    optimizer_factory: OptimizerFactory | None = None,
) -> TrainingModule:
    """Build the LightningModule of a run.

    Args:
        config: of the run.
        parts: of the data side.
        prepared: data.
        optimizer_factory: that is built already.

    Raises:
        ConfigError: a part is refused.
    """
    # Lightning takes seconds, which decoding would wait for
    from asr.training.module import TrainingModule

    updates = build_update_parts(config, optimizer_factory)
    recognizer = build_recognizer(config, prepared.tokenizer.vocab_size, prepared.mean, prepared.std)
    freeze(recognizer, config["init"]["freeze"])
    data = {
        "fingerprint": prepared.fingerprint,
        "folder": str(prepared.folder),
        "notes": list(prepared.notes),
        "utterance_s": round(float(np.quantile(prepared.cuts("train").durations, LONG_UTTERANCE)), 2),
        "noise": parts.perturb.digest() if isinstance(parts.perturb, Acoustics) else "",
    }
    num_cuts = int(prepared.splits["train"]["num_utterances"])
    return TrainingModule(
        recognizer,
        prepared.tokenizer,
        updates.decoder,
        updates.optimizer_factory,
        updates.schedule_factory,
        dev_names=prepared.names("dev"),
        max_duration_s=parts.batch.max_duration_s,
        extra_state={
            "format": FORMAT,
            "config": dict(config),
            "tokenizer": prepared.tokenizer.state(),
            "data": data,
        },
        unit=config["data"]["scoring_unit"],
        max_unreadable=max(1, int(config["data"]["max_unreadable"] * num_cuts)),
    )


def check_loggers(config: Mapping[str, Any]) -> None:
    """Check the options of loggers, and what they need, without building any: their constructors write files."""
    for factory in _factories(config, "logger"):
        if hasattr(factory.func, "check_machine"):
            factory.func.check_machine()
        if factory.func.__module__ == "lightning.pytorch.loggers.tensorboard" and not any(map(find_spec, TENSORBOARD)):
            raise ConfigError(f"{factory.key}: tensorboard is not installed: pip install 'werdict[tensorboard]'")


def build_all(config: Mapping[str, Any], group: Literal["logger", "callbacks"], run_dir: Path) -> list[Any]:
    """Build the parts of a group; those that take ``run_dir``, ``save_dir`` (Lightning's), or ``config`` get them."""
    arguments = {"run_dir": run_dir, "save_dir": str(run_dir), "config": config}
    return [factory.with_known(**arguments) for factory in _factories(config, group)]


def _factories(config: Mapping[str, Any], group: str) -> list[Configured]:
    """Check the keys and types of the loggers or callbacks of a group."""
    nodes = config.get(group)
    if not isinstance(nodes, Mapping):
        raise ConfigError(f"{group} is missing in the config" if nodes is None else f"{group}: given {nodes!r}")
    factories = []
    for name, node in nodes.items():
        if node is not None and not isinstance(node, Mapping):
            raise ConfigError(f"{group}.{name} must hold _target_ and options, or be null, given {node!r}")
        if node is not None:
            for key in RESERVED & node.keys():
                raise ConfigError(f"{group}.{name}.{key} cannot be given: it follows from the run's own {key}")
            factories.append(instantiate({**node, "_partial_": True}, f"{group}.{name}"))
    return factories


def num_threads(torch_threads: int | None, num_workers: int, num_processes: int = 1) -> int:
    """Return ``torch_threads`` if it is set, else the number of cores that no loader worker needs.

    Args:
        torch_threads: of this process, or None.
        num_workers: loader workers of each process.
        num_processes: that share the machine.
    """
    return torch_threads or max(1, len(os.sched_getaffinity(0)) // num_processes - num_workers)
