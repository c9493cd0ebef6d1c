"""A composed config → the plan of a run: nothing else edits a config, and nothing edits it afterwards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch import Trainer
from omegaconf import DictConfig, OmegaConf

from asr.config.build import DataParts, build_module, part, plain
from asr.config.command_line import override_key
from asr.config.data import data_for_run, source_corpus
from asr.config.dry_run import dry_run
from asr.config.help import CONFIGS
from asr.config.init_choices import RATES, fine_tuning, source_rates
from asr.config.init_source import ICEFALL, Source, load_source
from asr.config.mixtures import complete_sources, mixing_of
from asr.config.own_code import check_restored, trust_own
from asr.config.pretrained import FOLLOWING, base_folder, is_pretrained_config, pretrained_choices
from asr.config.replaced_defaults import drop_replaced_defaults
from asr.config.resume import changes_explain_errors, changes_since, fit_checkpoint
from asr.config.resumed_config import Change, changes, recorded_data, run_folder, saved_config
from asr.config.trainer import captures_encoder
from asr.console import PlainConsole
from asr.data.loading.loader import DataModule
from asr.data.preparation.prepared import PreparedData
from asr.data.preparation.saved_corpus import Budget, Choice, CorpusFacts
from asr.errors import ConfigError, did_you_mean
from asr.plain_data import is_within
from asr.processes import LAUNCHER_VARIABLE, RUN_DIR_VARIABLE, is_first_process
from asr.training.checkpoints import LoadedCheckpoint, newest_good_checkpoint
from asr.training.module import OptimizerFactory, TrainingModule
from asr.training.processes import is_started_as_rank

# one of them alone would make too few, or too many, passes over a corpus
LENGTH = ("trainer.max_steps", "trainer.max_epochs", "data.batch.max_duration_s")
ABSENT = object()

Checked = TypeVar("Checked")
console = PlainConsole(quiet=not is_first_process())


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
