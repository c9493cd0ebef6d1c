"""Builds every part of a run once, so that what cannot work fails before any work is done."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from asr.console import PlainConsole
from asr.data.loading.augmentation import Acoustics
from asr.data.loading.loader import DataModule
from asr.data.preparation.prepared import PreparedData
from asr.data.preparation.saved_corpus import Budget, Choice, CorpusFacts
from asr.errors import ConfigError, did_you_mean
from asr.models.recognizer import Recognizer, is_pretrained
from asr.plain_data import is_within
from asr.processes import (
    LAUNCHER_VARIABLE,
    NUM_RANKS,
    RANK_VARIABLES,
    RUN_DIR_VARIABLE,
    is_first_process,
    is_one_of_several,
)
from asr.run.choices import RATES, RULE_KEYS, drop_replaced_defaults, fine_tuning, source_rates
from asr.run.command_line import CONFIGS, override_key
from asr.run.compose import Change, changes, recorded_data, run_folder, saved_config
from asr.run.data import complete_sources, data_folder, data_for_run, mixing_of, shard_storage, source_corpus
from asr.run.folder import free_folder, usable_folder
from asr.run.parts import (
    Configured,
    DataParts,
    UpdateParts,
    build_all,
    build_data_parts,
    build_module,
    build_update_parts,
    check_decoder,
    check_loggers,
    check_values,
    instantiate,
    is_own_model,
    outline_recognizer,
    parameters_of,
    part,
    plain,
)
from asr.run.start import (
    FOLLOWING,
    ICEFALL,
    Source,
    base_folder,
    changes_explain_errors,
    changes_since,
    fit_checkpoint,
    is_pretrained_config,
    kept_tokenizer,
    load_source,
    pretrained_choices,
    read_source,
    without_gradient,
)
from asr.run.trainer import build_trainer, captures_encoder
from asr.run.trust import at_work, check_restored, trust_own
from asr.training.checkpoints import LoadedCheckpoint, newest_good_checkpoint
from asr.training.initial_weights import freeze
from asr.training.module import OptimizerFactory, TrainingModule
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


# one of them alone would make too few, or too many, passes over a corpus
LENGTH = ("trainer.max_steps", "trainer.max_epochs", "data.batch.max_duration_s")
ABSENT = object()

Checked = TypeVar("Checked")


@dataclass(frozen=True)
class Plan:
    """A run that is known to work, and whose data are prepared.

    Attributes:
        config: resolved.
        job: Hydra's node about the command line.
        data: parts of the data side.
        prepared: the data.
        data_module: reads the cuts.
        trainer: knows the processes; without loggers and callbacks.
        resumed: folder of the run to resume.
        launched: folder of the run if our launcher has started this process.
        optimizer_factory: named parameters → optimizer.
        checkpoint: from which the run is resumed.
        source: the model to start from.
    """

    config: Mapping[str, Any]
    job: Any
    data: DataParts
    prepared: PreparedData
    data_module: DataModule
    trainer: Trainer
    resumed: Path | None
    launched: Path | None
    optimizer_factory: OptimizerFactory
    checkpoint: LoadedCheckpoint | None
    source: Source | None

    @cached_property
    def changes(self) -> list[Change]:
        """What has changed since the checkpoint, or the start, of a run that is resumed."""
        if self.checkpoint is not None:
            return changes_since(self.checkpoint, self.config, self.data, self.prepared)
        return [] if self.resumed is None else changes(saved_config(self.resumed), self.config)

    @cached_property
    def module(self) -> TrainingModule:
        """What is trained; building it applies the changes to the content of the checkpoint.

        Raises:
            ConfigError: a part is refused, or does not fit the checkpoint.
        """
        module = build_module(self.config, self.data, self.prepared, self.optimizer_factory)
        if self.checkpoint is not None and self.changes:
            fit_checkpoint(self.checkpoint, self.config, self.changes, module)
        return module

    @property
    def needs_launcher(self) -> bool:
        """Whether this process must start one process per device."""
        return self.launched is None and self.trainer.world_size > 1 and not is_started_as_rank(self.trainer)


def plan_run(config: DictConfig) -> Plan:
    """Check everything, then prepare the data, and count the updates of epochs.

    Raises:
        ConfigError: an option is refused.
        ValueError: the data cannot be prepared.
    """
    job = HydraConfig.get()
    # set if our launcher has started this process as one of several
    launched = os.environ.get(RUN_DIR_VARIABLE)
    if launched is not None and os.environ.get(LAUNCHER_VARIABLE) != str(os.getppid()):
        raise ConfigError(f"the variable {RUN_DIR_VARIABLE}={launched} is for internal use only; unset it")
    resumed = None if config.resume is None else run_folder(config.resume)
    run_dir = None if launched is None else Path(launched)
    if resumed is not None:
        check_restored(plain(config), f"resume: {resumed}", saved_config(resumed))
    overridden = {override_key(word) for word in job.overrides.task}
    checkpoint = None if resumed is None else newest_good_checkpoint(resumed)
    outline = resolve(config, lambda resolved: dry_run(resolved, resumed or run_dir, checkpoint))
    if config.trainer.get("capture", False) is None:  # recorded as it was decided: graphs pad batches, so masks differ
        config.trainer.capture = captures_encoder(outline.trainer, outline.encoder)
    _choose_length(config, overridden)
    # the folder of a stranger's run could say where data are written, and how much of them
    storage = {"data.storage.dir"} if config.data.storage.dir else set()
    may_prepare = resumed is None or overridden >= {"data.dir"} | storage
    # it could name any place as its source too, which could take hours to read
    recorded = None if resumed is None or may_prepare or "data.source" in overridden else recorded_data(resumed)
    with changes_explain_errors(resumed, plain(config), config.allow_changes or "data.dir" in overridden):
        parts = outline.data, outline.encoder
        prepared = data_for_run(plain(config), *parts, run_dir is not None, may_prepare, recorded)
    reading = outline.data.features, prepared.tokenizer, outline.data.batch, outline.data.workers
    data_module = DataModule(*reading, mixing_of(config.data.sources, prepared), config.data.scoring_unit)
    _count_updates(config, prepared, data_module, outline.trainer.world_size)
    folders, weights = (resumed, run_dir), (checkpoint, outline.source)
    sides = (outline.data, prepared, data_module)
    return Plan(plain(config), job, *sides, outline.trainer, *folders, outline.optimizer_factory, *weights)


def resolve(config: DictConfig, check: Callable[[Mapping[str, Any]], Checked]) -> Checked:
    """Put into a config what follows from the user's own classes, the source of weights, and the corpus; say each.

    Args:
        config: composed; changed in place.
        check: refuses what cannot work, before a corpus is read.

    Returns:
        What ``check`` has returned for the resolved config.

    Raises:
        ValueError: an option is refused, or the corpus cannot be used.
    """
    complete_sources(config)
    overridden = {override_key(word) for word in HydraConfig.get().overrides.task}
    if config.resume is not None:  # all of it is in the run's own config
        if "encoder.model" in overridden:
            saved = saved_config(run_folder(config.resume))
            config.encoder.model_folder = base_folder(saved, config.encoder.model)
            config.encoder.model = saved["encoder"]["model"]
        return check(plain(config))
    optimizers = GlobalHydra.instance().config_loader().get_group_options("optimizer")
    for name in config.best_lr:
        if name not in optimizers:
            raise ConfigError(f"best_lr.{name}: there is no such optimizer.{did_you_mean(name, optimizers)}")
    settle_classes(config)
    if is_pretrained_config(plain(config)):
        apply_choices(config, pretrained_choices(config, overridden))
    path = config.init.path
    source = None if path is None or path.endswith(ICEFALL) else load_source(path)
    apply_choices(config, source_rates(plain(config), source, overridden))
    checked = check(plain(config))
    chosen = choices_by_corpus(plain(config), overridden) if config.data.by_corpus else []
    apply_choices(config, chosen)
    fitting = list(fine_tuning(config, source, overridden))
    apply_choices(config, fitting)
    return check(plain(config)) if chosen or fitting else checked


def settle_classes(config: DictConfig) -> None:
    """Leave out what the user's own classes do not take, and trust the packages that the user has named."""
    job = HydraConfig.get()
    if config.resume is None:
        drop_replaced_defaults(config, job.overrides.task, job.runtime.choices)
        trust_own(cast(dict[str, Any], OmegaConf.to_container(config)))


def choices_by_corpus(config: Mapping[str, Any], overridden: Collection[str]) -> list[Choice]:
    """Return what a recipe's prepare function chooses for the corpus; advice is printed.

    Args:
        config: of a new run with ``data.by_corpus``.
        overridden: keys that the command line names, which keep their values.

    Raises:
        ValueError: the corpus cannot be used.
    """
    choose: Any = getattr(getattr(part(config, "data.prepare"), "func", None), "choose", None)
    if choose is None or config["data"]["sources"] is not None:
        if "data.by_corpus" in overridden:
            raise ConfigError("data.by_corpus: this recipe, or mixture, has no choices by corpus; leave it out")
        return []
    budget = Budget(config["trainer"]["max_steps"], config["data"]["batch"]["max_duration_s"])
    options = [key for key in overridden if key != "encoder"]  # encoder=conformer_xs says nothing of the corpus
    fixed_keys = [*options, *(LENGTH if any(is_within(key, options) for key in LENGTH) else ())]
    if config["init"]["path"] is not None:
        fixed_keys += RATES  # those of its weights are taken
    if is_pretrained_config(config):
        fixed_keys += FOLLOWING
    if "tokenizer" in overridden:
        fixed_keys.append("encoder.subsampling_factor")  # it follows from characters as tokens
    choices = list(choose(CorpusFacts.of(source_corpus(config)), budget))
    for advice in choices:
        if isinstance(advice, str):
            console.print_line(f"note: {advice}")
    return [choice for choice in choices if isinstance(choice, Choice) and not is_within(choice.key, fixed_keys)]


def apply_choices(config: DictConfig, choices: Iterable[Choice]) -> None:
    """Set options, and groups, whose value is the name of a choice; say each."""
    for choice in choices:
        # an option that this encoder lacks belongs to another one
        if OmegaConf.select(config, choice.key, default=ABSENT) is ABSENT:
            continue
        is_group = isinstance(choice.value, str)
        value = OmegaConf.load(CONFIGS / choice.key / f"{choice.value}.yaml") if is_group else choice.value
        OmegaConf.update(config, choice.key, value, merge=False)
        shown = choice.value if isinstance(choice.value, str) else json.dumps(choice.value)
        console.print_line(f"chosen: {choice.key}={shown}  ({choice.reason})")


def _choose_length(config: DictConfig, overridden: Collection[str]) -> None:
    """Let updates that the command line gives replace the epochs of a recipe."""
    if "trainer.max_steps" not in overridden:
        return
    if "trainer.max_epochs" not in overridden:
        config.trainer.max_epochs = None
    elif config.trainer.max_epochs not in (None, -1):
        raise ConfigError(
            f"trainer.max_steps={config.trainer.max_steps} and trainer.max_epochs={config.trainer.max_epochs}: a run "
            "has one length; give one of them"
        )


def _count_updates(config: DictConfig, prepared: PreparedData, data_module: DataModule, world_size: int) -> None:
    """Replace ``trainer.max_epochs`` by ``trainer.max_steps``, with updates counted from metadata.

    The budget of a run is its number of updates: schedules take their length from there.

    Raises:
        ConfigError: an epoch has too little audio for an update.
    """
    _, sampler = data_module.training_data(prepared.cuts("train"), config.seed, None)
    per_update = config.trainer.accumulate_grad_batches * world_size
    num_batches = sampler.count_updates(0, 1)
    if num_batches < per_update:  # it would wait for the first update forever
        raise ConfigError(
            f"trainer.accumulate_grad_batches={config.trainer.accumulate_grad_batches} in each of {world_size} "
            f"processes makes {per_update} micro-batches per update, but an epoch has {num_batches}; lower it, "
            f"trainer.devices, or data.batch.max_duration_s={config.data.batch.max_duration_s}"
        )
    epochs = config.trainer.max_epochs
    if epochs in (None, -1):
        return
    config.trainer.max_steps = sum(sampler.count_updates(epoch, per_update) for epoch in range(epochs))
    config.trainer.max_epochs = -1
    console.print(f"{epochs} epochs are {config.trainer.max_steps} updates")
