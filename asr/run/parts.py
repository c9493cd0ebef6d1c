"""The parts of a run, built from its options."""

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
from omegaconf import OmegaConf
from torch.optim import Optimizer

from asr.data.features import Features
from asr.data.loading.augmentation import AudioAugmentation
from asr.data.loading.loader import Workers
from asr.data.loading.sampling import BucketingConfig
from asr.data.preparation.cuts import Limits
from asr.data.preparation.prepared import PreparedData
from asr.decoding.beam import FILE_OPTIONS
from asr.decoding.greedy import Decoder
from asr.features.log_mel import GlobalNorm
from asr.models.heads.protocols import Head
from asr.models.recognizer import Recognizer, initialize, is_pretrained
from asr.run.command_line import CONFIGS
from asr.run.instantiate import Configured, build_component, locate, parameters_of
from asr.run.options import Augment, ModelOptions, RunOptions, Target
from asr.run.trust import error_context, is_third_party
from asr.text.tokenizer import KeptTokenizer, SubwordTokenizer, Tokenizer
from asr.training.checkpoints import FORMAT
from asr.training.initial_weights import freeze
from werdict.errors import ConfigError

if TYPE_CHECKING:
    from asr.training.module import OptimizerFactory, ScheduleFactory, TrainingModule


RESERVED = {"run_dir", "config"}  # arguments of loggers and callbacks that the program sets itself
ENCODER = ("d_model", "subsampling_factor", "output_frames")  # what a recognizer asks of an encoder of the user's own
TENSORBOARD = ("tensorboard", "tensorboardX")  # packages, of which one is enough
LONG_UTTERANCE = 0.95  # quantile of training utterances; longer parts of recordings would be decoded badly


@dataclass(frozen=True)
class DataParts:
    """What turns a corpus into batches."""

    features: Features
    text: Callable[[str], str]
    limits: Limits
    batch: BucketingConfig
    workers: Workers
    augmentation: Any
    tokenizer_trainer: Any


def build_data_parts(options: RunOptions, tokenizer: Tokenizer | None = None) -> DataParts:
    """Build the parts of the data side.

    Args:
        options: of a run.
        tokenizer: to use; None: train one.
    """
    augment, data = options.augment, options.data
    features = build_component(options.features, "features")
    augmentation = None if augment.audio is None else build_component(augment.audio, "augment.audio")
    if augmentation is not None and features.precomputed:
        raise ConfigError("augment.audio changes the audio, but features are stored; choose augment.audio=null")
    masks, content = build_masks(augment), getattr(features, "content", "spectrum")
    if getattr(masks, "needs", None) not in (None, content):
        raise ConfigError(
            f"augment.features: {type(masks).__name__} needs features with content={masks.needs}, but those of "
            f"{type(features).__name__} have content={content}; choose augment.features=null"
        )
    limits = build_component(data.limits, "data.limits")
    batch, workers = build_component(data.batch, "data.batch"), build_component(data.workers, "data.workers")
    trainer = build_component(options.tokenizer, "tokenizer") if tokenizer is None else KeptTokenizer(tokenizer)
    text = build_text(data.text, trainer.tokenizer if isinstance(trainer, KeptTokenizer) else None)
    return DataParts(features, text, limits, batch, workers, augmentation, trainer)


def build_masks(augment: Augment) -> Any:
    """Build the augmentation of features; None if there is none."""
    return None if augment.features is None else build_component(augment.features, "augment.features")


def build_text(rules: Target, tokenizer: Tokenizer | None) -> Callable[[str], str]:
    """Build the normalizer of transcripts, after which the rules of the user's own sentencepiece model rewrite them."""
    normalize: Callable[[str], str] = build_component(rules, "data.text")
    return partial(tokenizer.rewritten, normalize) if isinstance(tokenizer, SubwordTokenizer) else normalize


def build_encoder(target: Target, num_features: int) -> Any:
    """Build the encoder for features of a given width."""
    encoder = build_component(target, "encoder", num_features=num_features)
    if lacking := [name for name in ENCODER if not hasattr(encoder, name)]:
        raise ConfigError(
            f"encoder: {type(encoder).__name__} has no {', '.join(lacking)}; the documentation's page on your own code "
            "says what is needed"
        )
    return encoder


def build_recognizer(
    options: ModelOptions, vocab_size: int, mean: Sequence[float], std: Sequence[float], is_outline: bool = False
) -> Recognizer:
    """Build the recognizer with new weights that depend only on the seed and the shapes.

    Args:
        options: of the model.
        vocab_size: of the tokenizer.
        mean: of each feature.
        std: likewise.
        is_outline: leave the weights without memory, or without values, where `outline_device` says.
    """
    torch.manual_seed(options.seed)
    with outline_device(options) if is_outline else contextlib.nullcontext():
        encoder = build_encoder(options.encoder, len(mean))
        head = build_component(options.head, "head", d_model=encoder.d_model, vocab_size=vocab_size)
    if is_pretrained(encoder):
        mean, std = [0.0] * len(mean), [1.0] * len(mean)
    with error_context("head", type(head)):
        recognizer = Recognizer(encoder, head, GlobalNorm(mean, std), build_masks(options.augment))
    if not is_outline:
        initialize(recognizer)
    return recognizer


def outline_recognizer(options: ModelOptions, vocab_size: int, num_features: int) -> Recognizer:
    """Build the recognizer to learn its shapes."""
    return build_recognizer(options, vocab_size, [0.0] * num_features, [1.0] * num_features, is_outline=True)


def outline_device(options: ModelOptions) -> torch.device | contextlib.nullcontext[None]:
    """Return where an outline is built: on the meta device, which classes of the user's own may not know."""
    return contextlib.nullcontext() if is_own_model(options) else torch.device("meta")


def is_own_model(options: ModelOptions) -> bool:
    """Return whether encoder or head are classes of the user's own."""
    return is_third_party(options.encoder.target) or is_third_party(options.head.target)


def build_decoder(target: Target | None) -> Decoder:
    """Build the decoder of a run itself.

    Raises:
        ConfigError: it would read files, which a checkpoint does not hold.
    """
    for key, value in () if target is None else target.plain().items():
        if key in FILE_OPTIONS and value is not None:
            raise ConfigError(
                f"decoder.{key} is for asr-evaluate and asr-transcribe: a run is decoded from its checkpoint alone; "
                f"leave it null, given {value!r}"
            )
    decoder: Decoder = build_component(target, "decoder")
    return decoder


class UpdateParts(NamedTuple):
    """What turns gradients into updates, and log-probabilities into text."""

    optimizer_factory: OptimizerFactory
    schedule_factory: ScheduleFactory
    decoder: Decoder
    in_backward: Callable[[Any], Optimizer] | None


def build_update_parts(options: RunOptions) -> UpdateParts:
    """Build the factories of optimizer and schedule, the decoder, and what lets an optimizer step in backward."""
    in_backward = None
    if options.trainer.step_in_backward:
        key = "trainer.step_in_backward"
        in_backward = Configured(locate("optim.StepInBackward", key), {}, key)
    optimizer = build_component(options.optimizer, "optimizer", partial=True)
    grouped = build_component(options.parameter_rules, "parameter_rules", optimizer=optimizer)
    schedule = build_component(options.schedule, "schedule", partial=True)
    grouped = Configured(grouped, {}, "parameter_rules")
    return UpdateParts(grouped, schedule, build_decoder(options.decoder), in_backward)


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
    options: RunOptions, parts: DataParts, prepared: PreparedData, optimizer: Any = None
) -> TrainingModule:
    """Build the LightningModule of a run.

    Args:
        options: of the run.
        parts: of the data side.
        prepared: data.
        optimizer: that was built of an outline; None: build it.

    Raises:
        ConfigError: a part is refused.
    """
    # Lightning takes seconds, which decoding would wait for
    from asr.training.module import TrainingModule

    updates = build_update_parts(options)
    recognizer = build_recognizer(options, prepared.tokenizer.vocab_size, prepared.mean, prepared.std)
    freeze(recognizer, options.init.freeze)
    data = {
        "fingerprint": prepared.fingerprint,
        "folder": str(prepared.folder),
        "notes": list(prepared.notes),
        "utterance_s": round(float(np.quantile(prepared.cuts("train").durations, LONG_UTTERANCE)), 2),
        "noise": parts.augmentation.digest() if isinstance(parts.augmentation, AudioAugmentation) else "",
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
            "config": options.plain(),
            "tokenizer": prepared.tokenizer.state(),
            "data": data,
        },
        unit=options.data.scoring_unit,
        max_unreadable=max(1, int(options.data.max_unreadable * num_cuts)),
        optimizer=optimizer,
        in_backward=updates.in_backward,
    )


def factories(targets: Mapping[str, Target | None] | None, group: Literal["logger", "callbacks"]) -> list[Configured]:
    """Return the factories of loggers or callbacks, whose keys, types and needs are checked; none is built.

    The constructors of loggers write files.
    """
    if targets is None:
        raise ConfigError(f"{group} is missing in the config")
    chosen = {name: target for name, target in targets.items() if target is not None}
    for name, target in chosen.items():
        for key in RESERVED & target.plain().keys():
            raise ConfigError(f"{group}.{name}.{key} cannot be given: it follows from the run's own {key}")
    built = [build_component(target, f"{group}.{name}", partial=True) for name, target in chosen.items()]
    for factory in built:
        if hasattr(factory.func, "check_machine"):
            factory.func.check_machine()
        if factory.func.__module__ == "lightning.pytorch.loggers.tensorboard" and not any(map(find_spec, TENSORBOARD)):
            raise ConfigError(f"{factory.key}: tensorboard is not installed: pip install tensorboard")
    return built


def build_all(made_by: Sequence[Configured], run_dir: Path, options: RunOptions) -> list[Any]:
    """Build loggers or callbacks; those that take ``run_dir``, ``save_dir`` (Lightning's), or ``config`` get them."""
    arguments = {"run_dir": run_dir, "save_dir": str(run_dir), "config": options.plain()}
    named = [(factory, parameters_of(factory.func).keys() - factory.keywords) for factory in made_by]
    return [factory(**{name: value for name, value in arguments.items() if name in names}) for factory, names in named]


def num_threads(torch_threads: int | None, num_workers: int, num_processes: int = 1) -> int:
    """Return ``torch_threads`` if it is set, else the number of cores that no loader worker needs.

    Args:
        torch_threads: of this process, or None.
        num_workers: loader workers of each process.
        num_processes: that share the machine.
    """
    return torch_threads or max(1, len(os.sched_getaffinity(0)) // num_processes - num_workers)
