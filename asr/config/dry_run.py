"""Builds every part of a run once, so that what cannot work fails before any work is done."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from asr.config.build import (
    DataParts,
    UpdateParts,
    build_all,
    build_data_parts,
    build_update_parts,
    check_decoder,
    check_loggers,
    is_own_model,
    outline_recognizer,
    part,
)
from asr.config.data import data_folder, shard_storage
from asr.config.init_source import Source, kept_tokenizer, read_source
from asr.config.instantiate import Configured, check_values, instantiate, parameters_of
from asr.config.own_code import at_work
from asr.config.pretrained import without_gradient
from asr.config.replaced_defaults import RULE_KEYS
from asr.config.trainer import build_trainer
from asr.console import PlainConsole
from asr.data.loading.augmentation import Acoustics
from asr.errors import ConfigError
from asr.models.recognizer import Recognizer, is_pretrained
from asr.processes import NUM_RANKS, RANK_VARIABLES, is_first_process, is_one_of_several
from asr.run_folder import free_folder, usable_folder
from asr.training.checkpoints import LoadedCheckpoint
from asr.training.initial_weights import freeze
from asr.training.module import OptimizerFactory
from asr.training.optimizer_protocols import HasEvaluationPoint, calls_closure, small_parameters
from asr.training.processes import is_started_as_rank

WITHOUT_DECAY = ("optim.Constant", "torch.optim.lr_scheduler.ConstantLR")
VOCAB_SIZE = 8  # before a tokenizer is trained

console = PlainConsole(quiet=not is_first_process())


@dataclass(frozen=True)
class Outline:
    """The parts of a run before its data are prepared.

    Attributes:
        trainer: knows the processes; it has neither loggers nor callbacks, which need the run's folder.
        data: of the run itself.
        encoder: on the meta device.
        optimizer_factory: named parameters → optimizer.
        source: the model to start from.
    """

    trainer: Trainer
    data: DataParts
    encoder: nn.Module
    optimizer_factory: OptimizerFactory
    source: Source | None


def dry_run(
    config: Mapping[str, Any], existing_run_dir: Path | None = None, checkpoint: LoadedCheckpoint | None = None
) -> Outline:
    """Build everything once, with a small vocabulary and without memory for weights; start nothing.

    Args:
        config: of the run.
        existing_run_dir: if it is resumed, or another process has created it; else ``run_dir`` must not exist.
        checkpoint: of the run, from which it is resumed.

    Raises:
        ConfigError: a part is refused.
        ValueError: a folder cannot be used.
    """
    trainer = build_trainer(config, loggers=[], callbacks=[])
    _refuse_unknown_peers(trainer)
    check_loggers(config)
    build_all(config, "callbacks", Path("runs"))
    if config["callbacks"].get("checkpoints") is None:
        raise ConfigError("callbacks.checkpoints must not be null: without it a run can be neither decoded nor resumed")
    _check_weights(config)
    _check_health(config)
    data_folder(config)
    if config["run_dir"] is None:
        usable_folder("runs", "run_dir")
    elif existing_run_dir is None:
        free_folder(config["run_dir"], "run_dir")
    part(config, "data.prepare")
    data = build_data_parts(config, kept_tokenizer(config, existing_run_dir, checkpoint))
    if existing_run_dir is None:  # of a stranger's run they may be anybody's folders
        shard_storage(config["data"]["storage"], data.features)
        if isinstance(data.perturb, Acoustics):
            data.perturb.check_files()
    on_cpu = isinstance(trainer.accelerator, CPUAccelerator)
    recognizer = outline_recognizer(config, VOCAB_SIZE, data.features.num_features)
    source = read_source(config, data.features, recognizer.state_dict(), existing_run_dir)
    updates = build_update_parts(config)
    _warn_of_decay(try_updates(config, updates, recognizer, on_cpu), config)
    return Outline(trainer, data, recognizer.encoder, updates.optimizer_factory, source)


def try_updates(config: Mapping[str, Any], updates: UpdateParts, recognizer: Recognizer, on_cpu: bool) -> Optimizer:
    """Try what updates the weights: before any work, not after hours of preparation.

    Args:
        config: of a run.
        updates: built from it.
        recognizer: an outline of its own.
        on_cpu: whether the run trains on a CPU.

    Raises:
        ConfigError: a part is refused.
    """
    with at_work("init.freeze", freeze):
        freeze(recognizer, config["init"]["freeze"])
    check_decoder(updates.decoder, recognizer.head)
    if is_own_model(config):
        _try_model(recognizer)
    elif is_pretrained(recognizer.encoder) and (without := without_gradient(recognizer.encoder)):
        # transformers reads the weights of some layers past their adapters
        raise ConfigError(
            f"encoder: {len(without)} parameters would be trained but get no gradient, such as {without[0]}; exclude "
            "them by encoder.lora.target_modules (adapters) or init.freeze"
        )
    _try_optimizers(config, on_cpu)
    # a capturable optimizer keeps its rate on the device of its parameters, and the meta device has no numbers
    optimizer = updates.optimizer_factory(small_parameters(recognizer.named_parameters()))
    max_steps = config["trainer"].get("max_steps")
    _try_schedule(updates.schedule_factory(optimizer), max_steps if isinstance(max_steps, int) else 1)
    return optimizer


def _try_model(recognizer: Recognizer) -> None:
    """Run a forward and a backward pass of an encoder or head of the user's own on two utterances of noise.

    Raises:
        ConfigError: the encodings have another shape than the encoder says.
    """
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 400, len(recognizer.normalize.mean), generator=generator)
    num_frames = torch.tensor([400, 300])
    with at_work("encoder", type(recognizer.encoder)):
        encodings, lengths = recognizer(features, num_frames)
        encoder: Any = recognizer.encoder
        expected = encoder.output_frames(num_frames)
    shape = 2, int(expected.max()), encoder.d_model
    if tuple(encodings.shape) != shape or lengths.tolist() != expected.tolist():
        raise ConfigError(
            f"encoder: {type(recognizer.encoder).__name__} made encodings {tuple(encodings.shape)} of "
            f"lengths {lengths.tolist()}; by output_frames and d_model, {shape} of {expected.tolist()} are expected"
        )
    tokens = torch.randint(1, VOCAB_SIZE, (2, 4), generator=generator)
    with at_work("head", type(recognizer.head)):
        recognizer.losses(features, num_frames, tokens, torch.tensor([4, 3]), generator).total.sum().backward()
    recognizer.zero_grad()


def _try_optimizers(config: Mapping[str, Any], on_cpu: bool) -> None:
    """Update a small parameter: only optimizers of ours check the options of all groups when they are built.

    Raises:
        ConfigError: names the option that is refused, or the optimizer of torch's that cannot make an update.
    """
    optimizer = part(config, "optimizer")
    _try_optimizer(optimizer, {}, "optimizer", on_cpu)
    for place, rule in enumerate(config["parameter_rules"].get("rules") or ()):
        key, factory = f"parameter_rules.rules.{place}", optimizer
        if "optimizer" in rule:
            factory = instantiate(rule["optimizer"], f"{key}.optimizer")
        _try_optimizer(factory, {name: value for name, value in rule.items() if name not in RULE_KEYS}, key, on_cpu)


def _try_optimizer(factory: Configured, options: Mapping[str, Any], key: str, on_cpu: bool) -> None:
    target = factory.func
    if target.__module__.startswith("optim."):
        return
    accepted = {name: value for name, value in options.items() if name in parameters_of(target)}
    options = {**factory.keywords, **check_values(target, accepted, key)}
    if "capturable" in options and not on_cpu:
        options["capturable"] = False  # only a GPU can do it, and this parameter is on none
    _, *others = parameters_of(target).values()
    for p in others:
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in options:
            raise ConfigError(f"{key}: {target.__qualname__} needs {p.name}; give ++{key}.{p.name}=…")
    with at_work(key, target):
        calls_closure(target([nn.Parameter(torch.ones(2, 2))], **options))


def _try_schedule(schedule: LRScheduler, num_updates: int) -> None:
    """Step to the first updates, and to the last, where some schedules fail; the schedule cannot be used again.

    Raises:
        ConfigError: a schedule of ours or torch's cannot make the step.
    """
    with warnings.catch_warnings(), at_work("schedule", type(schedule)):
        warnings.simplefilter("ignore")  # torch misses updates of the optimizer
        for last in (0, 1, num_updates - 1):
            schedule.last_epoch = last
            schedule.step()


def _refuse_unknown_peers(trainer: Trainer) -> None:
    """Refuse to be one of several processes that the trainer does not know of, and to start some on other machines."""
    alone = trainer.world_size == 1 or not is_started_as_rank(trainer)
    if alone and is_one_of_several():
        ranks = " ".join(f"{name}={os.environ[name]}" for name in (*RANK_VARIABLES, NUM_RANKS) if name in os.environ)
        raise ConfigError(
            f"{ranks}: these variables say that this is one of several processes, but the trainer would not join them; "
            "unset them, or start all processes with torchrun or srun, as docs/clusters.md shows"
        )
    if trainer.world_size > trainer.num_devices and not is_started_as_rank(trainer):
        raise ConfigError(
            f"trainer.num_nodes={trainer.num_nodes}: on several machines start one process per device with torchrun or "
            "srun, as docs/clusters.md shows"
        )


def _check_health(config: Mapping[str, Any]) -> None:
    """Refuse to measure steps that begin before all gradients are there."""
    every = (config["callbacks"].get("optimizer_health") or {}).get("every")
    if every is not None and config["trainer"].get("step_in_backward", False):
        raise ConfigError(
            f"callbacks.optimizer_health.every={every} measures gradients after the backward pass, where "
            "trainer.step_in_backward=true has freed them; set one of the two to its default"
        )


def _warn_of_decay(optimizer: Optimizer, config: Mapping[str, Any]) -> None:
    """Warn if the learning rate decays although the optimizer averages weights instead."""
    averages = isinstance(optimizer, HasEvaluationPoint) and optimizer.has_evaluation_point
    schedule = config["schedule"]["_target_"]
    if averages and schedule not in WITHOUT_DECAY:
        console.print(
            f"WARNING: {config['optimizer']['_target_']} averages weights instead of decaying the learning rate, and "
            f"{schedule} decays it too: the last updates then change little. It is usually run with schedule=constant "
            "schedule.warmup_steps=200",
            soft_wrap=True,
            style="bold red",
        )


def _check_weights(config: Mapping[str, Any]) -> None:
    """Refuse weights to decode with that the checkpoints will not have."""
    kind = config["weights"]
    averaging = config["callbacks"].get("averaging")
    if averaging is None and (kind != "raw" or "average" in config["decode"]):
        option = f"weights={kind}" if kind != "raw" else f"decode=[{','.join(config['decode'])}]"
        raise ConfigError(f"{option}: with callbacks.averaging=null there are only raw weights")
    if kind == "ema" and averaging.get("ema_decay", "its default") is None:
        raise ConfigError(
            "weights=ema: with callbacks.averaging.ema_decay=null there are no EMA weights; allowed: raw, average"
        )
