"""``asr-train``: from a recipe to a WER."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.pytorch import Trainer
from omegaconf import DictConfig, OmegaConf

from asr.commands.app import run_app
from asr.commands.find_batch_size import find_batch_size
from asr.commands.launcher import launch
from asr.commands.startup import RUN_DIR_VARIABLE
from asr.config.build import DataParts, build_all, build_module, num_threads, plain, transcripts_lm_order
from asr.config.by_corpus import choose_by_corpus
from asr.config.command_line import added_config_folders, override_key
from asr.config.data import data_for_run
from asr.config.dry_run import dry_run
from asr.config.init import Source, record_source, start_from, take_rates
from asr.config.mixtures import complete_sources, mixing_of
from asr.config.own_code import check_restored, trust_own
from asr.config.replaced_defaults import drop_replaced_defaults
from asr.config.resume import (
    LAST_RECORDED,
    accepted_changes,
    build_resumed_module,
    changes_explain_errors,
    saying_how_to_resume,
)
from asr.config.resuming import (
    differs,
    record_accepted,
    recorded_data,
    recorded_overrides,
    run_folder,
    saved_config,
)
from asr.config.trainer import build_trainer, set_budget
from asr.console import PlainConsole
from asr.data.loading.data_module import DataModule
from asr.data.preparation.prepared import PreparedData
from asr.errors import ConfigError
from asr.inference.transcripts_lm import AFTER_TRAINING, search_with_transcripts
from asr.nested import at
from asr.run_folder import (
    LATEST,
    backup_existing,
    backup_path,
    claim_run_folder,
    create_run_folder,
    lock_run_dir,
    point_latest,
)
from asr.safe_io import write_whole
from asr.subprocesses import is_first_process
from asr.sweeps.jobs import run_job
from asr.systems import run_settings
from asr.tracking.open_loggers import open_loggers
from asr.training.callbacks.cost import measured_cost
from asr.training.checkpoints.files import explaining_failed_writes
from asr.training.checkpoints.loading import newest_good_checkpoint
from asr.training.fit import fit, why_early
from asr.training.processes import agree, is_started_as_rank
from asr.training.report import Stopwatch, report_run, start_lines
from asr.training.speech_data_module import SpeechDataModule

LAUNCHER_VARIABLE = "WERDICT_LAUNCHER"  # process id of the launcher that has set RUN_DIR_VARIABLE

console = PlainConsole(quiet=not is_first_process())


@dataclass(frozen=True)
class Plan:
    """A run that is known to work, and whose data are prepared.

    Attributes:
        config: composed and resolved.
        job: Hydra's node about the command line.
        data: parts of the data side.
        prepared: the data.
        data_module: reads the cuts.
        trainer: knows the processes; without loggers and callbacks.
        resumed: folder of the run to resume.
        launched: folder of the run if our launcher has started this process.
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
    source: Source | None

    @property
    def needs_launcher(self) -> bool:
        """Whether this process must start one process per device."""
        return self.launched is None and self.trainer.world_size > 1 and not is_started_as_rank(self.trainer)


def main() -> None:
    """Run ``asr-train``."""
    run_app("train", run)


def run(config: DictConfig) -> float | None:
    """Prepare missing data, train, decode the test sets; in a sweep, run one job and return its WER on dev."""
    job = HydraConfig.get()
    if job.mode == RunMode.MULTIRUN:
        _settle(config, job)
        return _run_job(config, job)
    run_once(plan_of(config))
    return None


def run_once(plan: Plan) -> Path | None:
    """Train, decode the test sets and return the run's folder; None if only the batch size was measured."""
    if plan.config["find_batch_size"]:
        module = build_module(plan.config, plan.data, plan.prepared)
        find_batch_size(plan.config, plan.prepared, plan.data_module, plan.data.perturb, module, plan.trainer)
        return None
    with _open_run_folder(plan) as run_dir:
        if plan.needs_launcher:
            environment = {RUN_DIR_VARIABLE: str(run_dir), LAUNCHER_VARIABLE: str(os.getpid())}
            words = [*added_config_folders(plan.job.runtime.config_sources), *plan.job.overrides.task]
            if code := launch("train", words, plan.trainer.num_devices, run_dir, environment):
                sys.exit(code)
        else:
            _fit_and_report(plan, run_dir)
        return run_dir


def _settle(config: DictConfig, job: Any) -> None:
    """Leave out what the user's own classes do not take, and trust the packages that the user has named."""
    if config.resume is None:
        drop_replaced_defaults(config, job.overrides.task, job.runtime.choices)
        trust_own(cast(dict[str, Any], OmegaConf.to_container(config)))


def _run_job(config: DictConfig, job: Any) -> float:
    raw = cast(dict[str, Any], OmegaConf.to_container(config))
    # parallel jobs would mix their output on the terminal
    parallel = not str(job.launcher._target_).endswith(".BasicLauncher")
    places = added_config_folders(job.runtime.config_sources)
    return run_job("train", job.overrides.task, raw, Path(job.sweep.dir), to_file=parallel, places=places)


def plan_of(config: DictConfig) -> Plan:
    """Check everything, then prepare the data."""
    job = HydraConfig.get()
    _settle(config, job)
    complete_sources(config)
    # set if our launcher has started this process as one of several
    launched = os.environ.get(RUN_DIR_VARIABLE)
    if launched is not None and os.environ.get(LAUNCHER_VARIABLE) != str(os.getppid()):
        raise ConfigError(f"the variable {RUN_DIR_VARIABLE}={launched} is only for this program itself; unset it")
    resumed = None if config.resume is None else run_folder(config.resume)
    run_dir = None if launched is None else Path(launched)
    if resumed is not None:
        check_restored(plain(config), f"resume: {resumed}", saved_config(resumed))
    overridden = {override_key(word) for word in job.overrides.task}
    if resumed is None:
        take_rates(config, overridden)
    outline = dry_run(plain(config), resumed or run_dir)
    if overridden >= {"trainer.max_steps", "trainer.max_epochs"} and config.trainer.max_epochs not in (None, -1):
        raise ConfigError(
            f"trainer.max_steps={config.trainer.max_steps} and trainer.max_epochs={config.trainer.max_epochs}: a run "
            "has one length; give one of them"
        )
    if resumed is None and config.data.by_corpus and choose_by_corpus(config, overridden):
        outline = dry_run(plain(config), run_dir)
    places = {"data.dir"} | ({"data.storage.dir"} if at(plain(config), "data", "storage", "dir") else set())
    # the folder of a stranger's run could say where data are written, and how much of them
    may_prepare = (
        resumed is None or overridden >= places or (config.allow_changes and overridden >= places - {"data.dir"})
    )
    # it could name any place as its source too, which could take hours to read
    recorded = None if resumed is None or may_prepare or "data.source" in overridden else recorded_data(resumed)
    with changes_explain_errors(resumed, plain(config), config.allow_changes or "data.dir" in overridden):
        prepared = data_for_run(
            plain(config), outline.data, outline.encoder, launched is not None, may_prepare, recorded
        )
    reading = outline.data.features, prepared.tokenizer, outline.data.batch, outline.data.workers
    data_module = DataModule(*reading, mixing_of(config.data.sources, prepared))
    if "trainer.max_steps" in overridden and "trainer.max_epochs" not in overridden:
        config.trainer.max_epochs = None  # of the recipe
    set_budget(config, prepared, data_module, outline.trainer.world_size)
    return Plan(
        plain(config), job, outline.data, prepared, data_module, outline.trainer, resumed, run_dir, outline.source
    )


@contextlib.contextmanager
def _open_run_folder(plan: Plan) -> Iterator[Path]:
    """Create or reopen the run's folder; the first process, or the launcher, locks it and records the start."""
    if plan.launched is not None or plan.needs_launcher:
        run_dir = plan.launched or plan.resumed or _new_run_folder(plan)
    else:
        run_dir = agree(plan.trainer, lambda: plan.resumed or _new_run_folder(plan))
    owner = plan.launched is None and is_first_process()
    with (
        lock_run_dir(run_dir) if owner else contextlib.nullcontext(),
        saying_how_to_resume(run_dir, plan.prepared),
    ):
        if owner:
            _record_start(plan, run_dir)
        yield run_dir


def _new_run_folder(plan: Plan) -> Path:
    if plan.config["run_dir"] is not None:
        return claim_run_folder(plan.config["run_dir"])
    folder = create_run_folder(Path("runs") / plan.job.runtime.choices["recipe"])
    point_latest(folder, Path("runs") / LATEST)
    return folder


def _record_start(plan: Plan, folder: Path) -> None:
    """Write the overrides and the composed config to the run's folder, which is locked.

    Raises:
        ConfigError: the config or the data of a resumed run have changed, and user or checkpoint do not accept it.
    """
    words = list(plan.job.overrides.task)
    if plan.resumed is not None:
        accepted = accepted_changes(plan.config, plan.data, plan.prepared, plan.resumed)
        if not accepted and not differs(saved_config(plan.resumed), plan.config):
            return
        if accepted:
            record_accepted(folder, accepted)
        words = recorded_overrides(plan.resumed, words)
    plan.prepared.record(folder)
    if plan.source is not None and plan.resumed is None:
        record_source(plan.source, folder)
    for name, content in (("config.yaml", dict(plan.config)), (LAST_RECORDED, words)):
        if (folder / name).exists():
            # copied, not renamed: a full disk must not leave the folder without the file
            write_whole(backup_path(folder / name), (folder / name).read_bytes())
        write_whole(folder / name, OmegaConf.to_yaml(OmegaConf.create(content)))
    plan.prepared.list_too_short(folder)


def _fit_and_report(plan: Plan, run_dir: Path) -> None:
    """Train in this process, which may be one of several; the first one decodes and reports."""
    watch, config = Stopwatch(), plan.config
    checkpoint = None if config["resume"] is None else newest_good_checkpoint(run_dir)
    module = build_resumed_module(config, plan.data, plan.prepared, checkpoint)
    if checkpoint is None and plan.source is not None:
        console.print_line(start_from(plan.source, module, config, run_dir))
    for line in start_lines(module.recognizer, config, run_dir, checkpoint):
        console.print_line(line)
    loggers = build_all(config, "logger", run_dir) if is_first_process() else []
    with open_loggers(loggers, 0 if checkpoint is None else checkpoint.update):
        callbacks = build_all(config, "callbacks", run_dir)
        trainer = build_trainer(config, loggers, callbacks, default_root_dir=str(run_dir))
        num_workers = plan.data_module.workers.num_workers
        torch.set_num_threads(num_threads(config.get("torch_threads"), num_workers, trainer.num_devices))
        with explaining_failed_writes(run_dir):
            parts = module.recognizer, plan.data_module, plan.prepared, plan.data.text
            lm_order = transcripts_lm_order(config) if is_first_process() else 0
            search = search_with_transcripts(*parts, run_dir, lm_order, module.unit)
        data = SpeechDataModule(plan.prepared, plan.data_module, config["seed"], plan.data.perturb)
        fit(trainer, module, data, checkpoint)
        early = why_early(trainer)
        if is_first_process():
            for before, backup in backup_existing(run_dir, ("decode", "report", *AFTER_TRAINING)):
                console.print_line(f"the former {before} is kept as {backup}")
            report_run(
                module,
                plan.data_module,
                plan.prepared,
                run_dir,
                loggers,
                training=watch.read()
                | ({} if checkpoint is None else {"resumed_after": checkpoint.update})
                | ({"num_unreadable": unreadable} if (unreadable := module.unreadable.num_utterances) else {}),
                cost=measured_cost(trainer),
                settings=run_settings(config),
                test_names=plan.prepared.names("test") if config["decode_test"] else (),
                weights=config["weights"],
                decode=config["decode"],
                notes=[early] if early else [],
                search=search,
            )
    if early:
        console.print_line(early)


if __name__ == "__main__":
    # launchers of parallel sweeps pickle the task: another process finds it by this module's name, not in __main__
    from asr.commands import train as named

    named.main()
