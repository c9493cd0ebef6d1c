"""Builds every part of a run once, so that what cannot work fails before any work is done."""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator
from torch import nn
from torch.optim import Optimizer

from asr import processes
from asr.data.loading.augmentation import AudioAugmentation
from asr.data.loading.loader import LoaderFactory
from asr.data.preparation.prepared import PreparedData
from asr.models.recognizer import Recognizer, is_pretrained
from asr.run import parts, start
from asr.run.choices import RULE_KEYS, choose_by_corpus, choose_by_words
from asr.run.compose import Change, Composed, changes, recorded_data, run_folder, saved_config, unaccepted
from asr.run.data import data_for_run, mixing_of, shard_storage
from asr.run.folder import free_folder, usable_folder
from asr.run.instantiate import (
    Configured,
    build_component,
    check_values,
    instantiate,
    parameters_of,
)
from asr.run.options import RunOptions
from asr.run.trainer import build_trainer, captures_encoder, size_by_torchrun
from asr.run.trust import check_restored, error_context
from asr.training.checkpoints import LoadedCheckpoint, newest_good_checkpoint
from asr.training.initial_weights import freeze
from asr.training.module import TrainingModule
from asr.training.optimizer_protocols import HasEvalMode, NamedParameters, calls_closure, replaces_params
from asr.training.processes import console, is_started_as_rank
from asr.training.speech_data_module import SpeechDataModule
from werdict.errors import ConfigError
from werdict.files import get_nested, is_within

WITHOUT_DECAY = ("optim.Constant", "torch.optim.lr_scheduler.ConstantLR")
ACCUMULATE = "trainer.accumulate_grad_batches"
VOCAB_SIZE = 8  # before a tokenizer is trained


@dataclass(frozen=True)
class Outline:
    """The parts of a run before its data are prepared.

    Attributes:
        trainer: knows the processes; it has neither loggers nor callbacks, which need the run's folder.
        data: of the run itself.
        encoder: on the meta device.
        optimizer: of an outline of the parameters, that is given those of the recognizer; None: of another package.
        source: the model to start from.
        loggers: factories of the loggers.
        callbacks: factories of the callbacks.
    """

    trainer: Trainer
    data: parts.DataParts
    encoder: nn.Module
    optimizer: Any
    source: start.Source | None
    loggers: list[Configured]
    callbacks: list[Configured]


def validate_run(
    options: RunOptions, existing_run_dir: Path | None = None, checkpoint: LoadedCheckpoint | None = None
) -> Outline:
    """Build everything once, with a small vocabulary and without memory for weights; start nothing.

    Args:
        options: of the run.
        existing_run_dir: if it is resumed, or another process has created it; else ``run_dir`` must not exist.
        checkpoint: of the run, from which it is resumed.

    Raises:
        ConfigError: a part is refused.
        ValueError: a folder cannot be used.
    """
    trainer = build_trainer(options.trainer, loggers=[], callbacks=[])
    if options.find_batch_size and not isinstance(trainer.accelerator, CUDAAccelerator):
        raise ConfigError(
            "find_batch_size=true needs a GPU (trainer=gpu), whose memory it fills; on a CPU, lower "
            "data.batch.max_duration_s if memory runs out"
        )
    _refuse_unknown_peers(trainer)
    loggers, callbacks = parts.factories(options.logger, "logger"), parts.factories(options.callbacks, "callbacks")
    parts.build_all(callbacks, Path("runs"), options)
    _check_callbacks(options)
    usable_folder(options.data.dir, "data.dir")
    if options.run_dir is None:
        usable_folder("runs", "run_dir")
    elif existing_run_dir is None:
        free_folder(options.run_dir, "run_dir")
    build_component(options.data.prepare, "data.prepare", partial=True)
    data = parts.build_data_parts(options, start.kept_tokenizer(options, existing_run_dir, checkpoint))
    if existing_run_dir is None:  # of a stranger's run they may be anybody's folders
        shard_storage(options.data.storage, data.features)
        if isinstance(data.augmentation, AudioAugmentation):
            data.augmentation.check_files()
    on_cpu = isinstance(trainer.accelerator, CPUAccelerator)
    recognizer = parts.outline_recognizer(options, VOCAB_SIZE, data.features.num_features)
    source = start.read_source(options, data.features, recognizer.state_dict(), existing_run_dir)
    optimizer = try_updates(options, recognizer, on_cpu)
    _warn_of_decay(optimizer, options)
    kept = optimizer if replaces_params(optimizer) else None
    return Outline(trainer, data, recognizer.encoder, kept, source, loggers, callbacks)


def try_updates(options: RunOptions, recognizer: Recognizer, on_cpu: bool) -> Optimizer:
    """Try what updates the weights: before any work, not after hours of preparation.

    Args:
        options: of a run.
        recognizer: an outline of its own.
        on_cpu: whether the run trains on a CPU.

    Returns:
        The optimizer, of small parameters; only ours, which can be given those of the run later, is as new.

    Raises:
        ConfigError: a part is refused.
    """
    updates = parts.build_update_parts(options)
    with error_context("init.freeze", freeze):
        freeze(recognizer, options.init.freeze)
    parts.check_decoder(updates.decoder, recognizer.head)
    if parts.is_own_model(options):
        _try_model(recognizer)
    elif is_pretrained(recognizer.encoder) and (without := start.without_gradient(recognizer.encoder)):
        # transformers reads the weights of some layers past their adapters
        raise ConfigError(
            f"encoder: {len(without)} parameters would be trained but get no gradient, such as {without[0]}; exclude "
            "them by encoder.lora.target_modules (adapters) or init.freeze"
        )
    try_third_party(options, on_cpu)
    # a capturable optimizer keeps its rate on the device of its parameters, and the meta device has no numbers
    optimizer = updates.optimizer_factory(NamedParameters(recognizer, small=True))
    # a schedule sets options of the groups
    trial = copy.deepcopy(optimizer) if replaces_params(optimizer) else optimizer
    if updates.in_backward is not None:
        trial = updates.in_backward(trial)
    schedule = updates.schedule_factory(trial)
    with warnings.catch_warnings(), error_context("schedule", type(schedule)):
        warnings.simplefilter("ignore")  # torch misses updates of the optimizer
        for last in (0, 1, options.trainer.max_steps - 1):  # some fail at their last step
            schedule.last_epoch = last
            schedule.step()
    return optimizer


def _try_model(recognizer: Recognizer) -> None:
    """Run a forward and a backward pass of an encoder or head of the user's own on two utterances of noise.

    Raises:
        ConfigError: the encodings have another shape than the encoder says.
    """
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 400, len(recognizer.normalize.mean), generator=generator)
    num_frames = torch.tensor([400, 300])
    with error_context("encoder", type(recognizer.encoder)):
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
    with error_context("head", type(recognizer.head)):
        recognizer.losses(features, num_frames, tokens, torch.tensor([4, 3]), generator).total.sum().backward()
    recognizer.zero_grad()


def try_third_party(options: RunOptions, on_cpu: bool) -> None:
    """Update a small parameter by each optimizer that is not ours: they do not check the options of all groups.

    Raises:
        ConfigError: names the option that is refused, or the optimizer of torch's that cannot make an update.
    """
    optimizer = build_component(options.optimizer, "optimizer", partial=True)
    tries: list[tuple[str, Configured, dict[str, Any]]] = [("optimizer", optimizer, {})]
    for place, rule in enumerate(options.parameter_rules.plain().get("rules") or ()):
        key = f"parameter_rules.rules.{place}"
        factory = instantiate(rule["optimizer"], f"{key}.optimizer") if "optimizer" in rule else optimizer
        tries.append((key, factory, {name: value for name, value in rule.items() if name not in RULE_KEYS}))
    for key, factory, given in tries:
        target = factory.func
        if is_within(target.__module__, ["optim"]):
            continue
        _, *others = parameters_of(target).values()
        accepted = {p.name: given[p.name] for p in others if p.name in given}
        keywords = {**factory.keywords, **check_values(target, accepted, key)}
        if "capturable" in keywords and not on_cpu:
            keywords["capturable"] = False  # only a GPU can do it, and this parameter is on none
        for p in others:
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in keywords:
                raise ConfigError(f"{key}: {target.__qualname__} needs {p.name}; give ++{key}.{p.name}=…")
        with error_context(key, target):
            calls_closure(target([nn.Parameter(torch.ones(2, 2))], **keywords))


def _refuse_unknown_peers(trainer: Trainer) -> None:
    """Refuse to be one of several processes that the trainer does not know of, and to start some on other machines."""
    alone = trainer.world_size == 1 or not is_started_as_rank(trainer)
    if alone and processes.is_one_of_several():
        ranks = " ".join(
            f"{name}={os.environ[name]}"
            for name in (*processes.RANK_VARIABLES, processes.NUM_RANKS)
            if name in os.environ
        )
        raise ConfigError(
            f"{ranks}: these variables say that this is one of several processes, but the trainer would not join them; "
            "unset them, or start all processes with torchrun or srun, as the documentation's page on clusters shows"
        )
    if trainer.world_size > trainer.num_devices and not is_started_as_rank(trainer):
        raise ConfigError(
            f"trainer.num_nodes={trainer.num_nodes}: on several machines start one process per device with torchrun or "
            "srun, as the documentation's page on clusters shows"
        )


def _warn_of_decay(optimizer: Optimizer, options: RunOptions) -> None:
    """Warn if the learning rate decays although the optimizer averages weights instead."""
    averages = isinstance(optimizer, HasEvalMode) and optimizer.has_eval_mode
    if averages and options.schedule.target not in WITHOUT_DECAY:
        console.print(
            f"WARNING: {options.optimizer.target} averages weights instead of decaying the learning rate, and "
            f"{options.schedule.target} decays it too: the last updates then change little. It is usually run with "
            "schedule=constant schedule.warmup_steps=200",
            soft_wrap=True,
            style="bold red",
        )


def _check_callbacks(options: RunOptions) -> None:
    """Refuse callbacks that cannot measure, and checkpoints that will not have the weights to decode with."""
    kind, callbacks = options.weights, options.callbacks
    if callbacks.get("checkpoints") is None:
        raise ConfigError("callbacks.checkpoints must not be null: without it a run can be neither decoded nor resumed")
    averaging, health = callbacks.get("averaging"), callbacks.get("optimizer_health")
    if averaging is None and (kind != "raw" or "average" in options.decode):
        option = f"weights={kind}" if kind != "raw" else f"decode=[{','.join(options.decode)}]"
        raise ConfigError(f"{option}: with callbacks.averaging=null there are only raw weights")
    if kind == "ema" and averaging is not None and averaging.plain().get("ema_decay", "its default") is None:
        raise ConfigError(
            "weights=ema: with callbacks.averaging.ema_decay=null there are no EMA weights; allowed: raw, average"
        )
    if health is not None and health.every is not None and options.trainer.strategy == "fsdp":
        raise ConfigError(
            f"callbacks.optimizer_health.every={health.every} measures whole parameters in one process, which have "
            "parts of them with trainer.strategy=fsdp; set one of the two to its default"
        )
    if health is not None and health.every is not None and options.trainer.step_in_backward:
        raise ConfigError(
            f"callbacks.optimizer_health.every={health.every} measures gradients after the backward pass, where "
            "trainer.step_in_backward=true has freed them; set one of the two to its default"
        )


@dataclass(frozen=True)
class Run:
    """A run that is known to work, and whose data are prepared.

    Attributes:
        composed: its config and the words of its start.
        options: as they were chosen for this run.
        outline: its parts, as they were checked.
        prepared: the data.
        loaders: reads the cuts.
        resumed: folder of the run to resume.
        launched: folder of the run if our launcher has started this process.
        checkpoint: from which the run is resumed.
        changes: what has changed since the checkpoint, or the start, of a run that is resumed.
    """

    composed: Composed
    options: RunOptions
    outline: Outline
    prepared: PreparedData
    loaders: LoaderFactory
    resumed: Path | None
    launched: Path | None
    checkpoint: LoadedCheckpoint | None
    changes: list[Change]

    @classmethod
    def build(cls, composed: Composed) -> Run:
        """Check everything, then prepare the data, and count the updates of epochs.

        Raises:
            ConfigError: an option is refused.
            ValueError: the data cannot be prepared.
        """
        options: RunOptions = composed.options
        # set if our launcher has started this process as one of several
        launched = os.environ.get(processes.RUN_DIR_VARIABLE)
        if launched is not None and os.environ.get(processes.LAUNCHER_VARIABLE) != str(os.getppid()):
            raise ConfigError(
                f"the variable {processes.RUN_DIR_VARIABLE}={launched} is for internal use only; unset it"
            )
        run_dir = None if launched is None else Path(launched)
        resumed = None if options.resume is None else run_folder(options.resume)
        if resumed is not None:
            check_restored(dict(options), f"resume: {resumed}", saved_config(resumed))
        checkpoint = None if resumed is None else newest_good_checkpoint(resumed)
        composed, source = choose_by_words(composed)
        outline = validate_run(composed.options, resumed or run_dir, checkpoint)
        before, composed = composed, choose_by_corpus(composed, source)
        if composed is not before:
            outline = validate_run(composed.options, resumed or run_dir, checkpoint)
        composed = _with_decisions(composed, outline)
        composed, has_same_updates = _with_same_updates(composed, outline.trainer, checkpoint, resumed)
        options, given = composed.options, composed.given
        # the folder of a stranger's run could say where data are written, and how much of them
        storage = {"data.storage.dir"} if options.data.storage.dir else set()
        may_prepare = resumed is None or given >= {"data.dir"} | storage
        # it could name any place as its source too, which could take hours to read
        recorded = None if resumed is None or may_prepare or "data.source" in given else recorded_data(resumed)
        with start.changes_explain_errors(resumed, options, options.allow_changes or "data.dir" in given):
            is_quiet = run_dir is not None
            prepared = data_for_run(options, outline.data, outline.encoder, is_quiet, may_prepare, recorded)
        reading = outline.data.features, prepared.tokenizer, outline.data.batch, outline.data.workers
        loaders = LoaderFactory(*reading, mixing_of(options.data.sources, prepared), options.data.scoring_unit)
        composed = _with_counted_updates(composed, prepared, loaders, outline.trainer.world_size)
        options, changed = composed.options, list[Change]()
        if checkpoint is not None:
            changed = start.changes_since(checkpoint, options, outline.data, prepared)
        elif resumed is not None:
            changed = changes(saved_config(resumed), options.plain())
        if has_same_updates:
            changed = [change for change in changed if change.key != ACCUMULATE]
        return cls(composed, options, outline, prepared, loaders, resumed, run_dir, checkpoint, changed)

    @cached_property
    def module(self) -> TrainingModule:
        """What is trained; building it applies the changes to the content of the checkpoint.

        Raises:
            ConfigError: a part is refused, or does not fit the checkpoint.
        """
        module = self.new_module()
        if self.checkpoint is not None and self.changes:
            start.fit_checkpoint(self.checkpoint, self.options, self.changes, module)
        return module

    @cached_property
    def data(self) -> SpeechDataModule:
        """What it trains with."""
        augmentation, options = self.outline.data.augmentation, self.options
        return SpeechDataModule(self.prepared, self.loaders, options.seed, augmentation, options.augment.copies)

    def new_module(self) -> TrainingModule:
        """Return a module with initial weights."""
        return parts.build_module(self.options, self.outline.data, self.prepared, self.outline.optimizer)

    @property
    def needs_launcher(self) -> bool:
        """Whether this process must start one process per device."""
        trainer = self.outline.trainer
        return self.launched is None and trainer.world_size > 1 and not is_started_as_rank(trainer)


def _with_decisions(composed: Composed, outline: Outline) -> Composed:
    """Let updates that the command line gives replace the epochs of a recipe, and record whether passes are captured.

    Graphs pad batches, so masks differ.
    """
    trainer, given, decided = composed.options.trainer, composed.given, dict[str, Any]()
    if {"trainer.max_steps", "trainer.max_epochs"} <= given and trainer.max_epochs not in (None, -1):
        raise ConfigError(
            f"trainer.max_steps={trainer.max_steps} and trainer.max_epochs={trainer.max_epochs}: a run has one length; "
            "give one of them"
        )
    if "trainer.max_steps" in given and "trainer.max_epochs" not in given:
        decided["trainer.max_epochs"] = None
    if trainer.cuda_graphs is None:
        decided["trainer.cuda_graphs"] = captures_encoder(outline.trainer, outline.encoder)
    return composed.with_values(decided) if decided else composed


def _with_same_updates(
    composed: Composed, trainer: Trainer, checkpoint: LoadedCheckpoint | None, resumed: Path | None
) -> tuple[Composed, bool]:
    """Return a config whose updates have as many micro-batches as they had on another number of processes.

    Args:
        composed: of the run.
        trainer: knows the processes.
        checkpoint: from which the run is resumed.
        resumed: its folder; None: a new run, whose config says how many processes it is meant for.

    Returns:
        Beside it, whether updates have as many, or as many as can be.
    """
    trained, number = composed.options.trainer, trainer.world_size
    former = number, trained.accumulate_grad_batches
    values: dict[str, Any] = {f"trainer.{name}": size for name, size in size_by_torchrun(trained).items()}
    node = trained.plain() if resumed is None else saved_config(resumed)["trainer"]
    saved = None if checkpoint is None else checkpoint.state
    if loaders := get_nested(saved, "loops", "fit_loop", "state_dict", "combined_loader"):
        former = loaders[0]["world_size"], loaders[0]["accumulate"]
    elif isinstance(node["devices"], int) and node["devices"] > 0:  # others stand for all devices of a machine
        former = node["devices"] * node["num_nodes"], node["accumulate_grad_batches"]
    kept, rest = max(1, prod(former) // number), prod(former) % number
    is_same = (kept, rest) == (trained.accumulate_grad_batches, 0)
    change = Change(ACCUMULATE, former[1], trained.accumulate_grad_batches)
    if not is_same and (resumed is None or unaccepted([change], resumed)):
        line = f"{ACCUMULATE}={kept} gives the same updates"
        if rest:
            line = f"a number that divides {prod(former)} keeps the same updates; {ACCUMULATE}={kept} is nearest"
        if ACCUMULATE not in composed.given:
            is_same, values[ACCUMULATE] = True, kept
            line += ", and is chosen"
        if processes.RUN_DIR_VARIABLE not in os.environ:  # else our launcher has said it
            text = "{} processes with {} micro-batches per update are {} processes now: {}"
            if resumed is None:
                text = "the config is for {} processes with {} micro-batches per update, torchrun has started {}: {}"
            console.print_line(text.format(*former, number, line))
    return composed.with_values(values) if values else composed, is_same


def _with_counted_updates(
    composed: Composed, prepared: PreparedData, loaders: LoaderFactory, world_size: int
) -> Composed:
    """Return a config whose ``trainer.max_epochs`` are ``trainer.max_steps``, with updates counted from metadata.

    The budget of a run is its number of updates: schedules take their length from there.

    Raises:
        ConfigError: an epoch has too little audio for an update.
    """
    options: RunOptions = composed.options
    _, sampler = loaders.training_data(prepared.cuts("train"), options.seed, None)
    accumulated, epochs = options.trainer.accumulate_grad_batches, options.trainer.max_epochs
    per_update = accumulated * world_size
    num_batches = sampler.count_updates(0, 1)
    if num_batches < per_update:  # it would wait for the first update forever
        raise ConfigError(
            f"trainer.accumulate_grad_batches={accumulated} in each of {world_size} processes makes {per_update} "
            f"micro-batches per update, but an epoch has {num_batches}; lower it, trainer.devices, or "
            f"data.batch.max_duration_s={options.data.batch.max_duration_s}"
        )
    if epochs in (None, -1):
        return composed
    num_updates = sum(sampler.count_updates(epoch, per_update) for epoch in range(epochs))
    console.print(f"{epochs} epochs are {num_updates} updates")
    return composed.with_values({"trainer.max_steps": num_updates, "trainer.max_epochs": -1})
