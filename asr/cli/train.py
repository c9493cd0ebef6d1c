"""``asr-train``: from a recipe to a WER."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from asr.cli.__main__ import RUN_DIR_VARIABLE
from asr.cli.app import run_app
from asr.cli.calibrate import calibrate_batches
from asr.cli.data import data_for_run
from asr.cli.errors import ConfigError
from asr.cli.model_size import no_more_parameters_than
from asr.cli.parts import build_recogniser, data_parts, plain, update_parts
from asr.cli.ranks import run_ranks
from asr.cli.rehearsal import attachments, build_trainer, rehearse
from asr.cli.resuming import changes, override_key, recorded_overrides, refuse_changes, run_folder, saved_config
from asr.cli.sweep_jobs import name_sweep, run_job
from asr.cli.words import words_for_jobs
from asr.console import PlainConsole
from asr.data.loading.data_module import DataModule
from asr.data.preparation.prepared import INDEX, PreparedData
from asr.models.recogniser import Recogniser
from asr.safe_io import write_whole
from asr.signals import Terminated
from asr.training.checkpoints import FORMAT, LoadedCheckpoint, newest_good_checkpoint
from asr.training.cost import measured_cost
from asr.training.errors import TrainingFailed
from asr.training.module import TrainingModule
from asr.training.processes import agree, is_first_process, is_started_as_rank
from asr.training.report import report_training
from asr.training.resume import ResumableLoader
from asr.training.run_folder import (
    Stopwatch,
    claim_run_folder,
    create_run_folder,
    former_path,
    hold,
    keep_former,
    num_threads,
    point_latest,
)
from asr.training.session import fit
from asr.training.stopping import check_monitors, why_early
from asr.training.unreadable import max_unreadable

LAUNCHER_VARIABLE = "WERDICT_LAUNCHER"  # and which process that is

console = PlainConsole(quiet=not is_first_process())


def main() -> None:
    """Run ``asr-train``."""
    name_sweep(sys.argv)
    run_app("train", train)


def train(config: DictConfig) -> float | None:
    """Prepare what is missing, train, decode the test sets, and say where everything is; in a sweep, have it done."""
    job = HydraConfig.get()
    if job.mode == RunMode.MULTIRUN:
        return _run_job(config, job)
    calibrating = config["calibrate"]
    resumed = None if config.resume is None else run_folder(config.resume)
    launched = _launched_for()
    trainer = build_trainer(plain(config), [], []) if launched else rehearse(plain(config), resumed is not None)
    # a folder may come from somebody else, and say where data are made, and how much of them
    may_prepare = resumed is None or config.resume_anyway or "data.dir" in map(override_key, job.overrides.task)
    prepared = data_for_run(plain(config), quiet=launched is not None, may_prepare=may_prepare)
    check_monitors(attachments(plain(config), "callbacks", Path("runs")), prepared.names("dev"))
    set_budget(config, prepared, trainer.world_size)
    resolved = plain(config)
    if calibrating:
        reading, module = _reading(resolved, prepared), _module(resolved, prepared)
        calibrate_batches(resolved, prepared.cuts("train"), reading, module)
        return None
    if launched:
        with _saying_how_to_resume(Path(launched), prepared):
            _run(resolved, prepared, Path(launched))
        return None
    if trainer.world_size == 1 or is_started_as_rank(trainer):
        run_dir = agree(trainer, lambda: resumed or _new_run_folder(resolved, job))
        with (
            hold(run_dir) if is_first_process() else contextlib.nullcontext(),
            _saying_how_to_resume(run_dir, prepared),
        ):
            if is_first_process():
                _record_start(resolved, run_dir, resumed, prepared, job)
            _run(resolved, prepared, run_dir)
            return None
    run_dir = resumed or _new_run_folder(resolved, job)
    with hold(run_dir), _saying_how_to_resume(run_dir, prepared):
        _record_start(resolved, run_dir, resumed, prepared, job)
        environment = {RUN_DIR_VARIABLE: str(run_dir), LAUNCHER_VARIABLE: str(os.getpid())}
        sys.exit(run_ranks("train", job.overrides.task, trainer.num_devices, environment))


def _launched_for() -> str | None:
    """Return the run's folder if this process is one of several that another of this program has started.

    Raises:
        ConfigError: the environment names a folder, but was not made by the parent process.
    """
    launched = os.environ.get(RUN_DIR_VARIABLE)
    if launched is not None and os.environ.get(LAUNCHER_VARIABLE) != str(os.getppid()):
        raise ConfigError(f"the variable {RUN_DIR_VARIABLE}={launched} is for this program alone; unset it")
    return launched


@contextlib.contextmanager
def _saying_how_to_resume(run_dir: Path, prepared: PreparedData) -> Iterator[None]:
    """Name the run after a Ctrl-C, after a signal before or after the updates, and where its data are removed."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"to resume from its last checkpoint: asr-train resume={run_dir}") from None
    except (OSError, ValueError, TrainingFailed) as error:
        if (prepared.folder / INDEX).is_file() or not run_dir.is_dir():
            raise
        again = f"asr-train resume={run_dir} data.dir={prepared.folder.parent.parent}"
        raise TrainingFailed(
            f"the prepared data in {prepared.folder} were removed while the run read them; {again} prepares them "
            "again and continues after the last checkpoint"
        ) from error
    except Terminated as ended:
        raise Terminated(ended.signal, lambda: f"; to resume: asr-train resume={run_dir}") from None


def _run_job(config: DictConfig, job: Any) -> float:
    raw = cast(dict[str, Any], OmegaConf.to_container(config))
    # the terminal belongs to one job at a time
    parallel = not str(job.launcher._target_).endswith(".BasicLauncher")
    places = words_for_jobs(job.runtime.config_sources)
    return run_job("train", job.overrides.task, raw, Path(job.sweep.dir), to_file=parallel, places=places)


def set_budget(config: DictConfig, prepared: PreparedData, world_size: int) -> None:
    """Turn ``trainer.max_epochs`` into ``trainer.max_steps``, counting updates on metadata.

    The budget of a run is its number of updates: schedules with a horizon read it from there.
    """
    epochs = config.trainer.get("max_epochs")
    if epochs in (None, -1):
        return
    reading, trainer = _reading(plain(config), prepared), config.trainer
    _, order = reading.training_data(prepared.cuts("train"), config.seed, None)
    per_update = trainer.accumulate_grad_batches * world_size
    config.trainer.max_steps = sum(order.count_updates(epoch, per_update) for epoch in range(epochs))
    config.trainer.max_epochs = -1
    console.print(f"{epochs} epochs are {config.trainer.max_steps} updates")


def _reading(config: Mapping[str, Any], prepared: PreparedData) -> DataModule:
    parts = data_parts(config)
    return DataModule(parts.features, prepared.tokenizer, parts.batch, parts.workers)


def _new_run_folder(config: Mapping[str, Any], job: Any) -> Path:
    """Create the folder of a new run."""
    if config["run_dir"] is not None:
        return claim_run_folder(config["run_dir"])
    folder = create_run_folder(Path("runs") / job.runtime.choices["recipe"])
    point_latest(folder, Path("runs") / "latest")
    return folder


def _record_start(
    config: Mapping[str, Any], folder: Path, resumed: Path | None, prepared: PreparedData, job: Any
) -> None:
    """Write what was typed and composed to the run's folder, which nobody else writes to now.

    Raises:
        ConfigError: a resumed run has changed, and the user does not accept it.
    """
    words = list(job.overrides.task)
    if resumed is not None:
        if not _refuse_other_training(config, resumed, prepared):
            return
        words = recorded_overrides(resumed, words)
    for name, content in (("config.yaml", dict(config)), ("overrides.yaml", words)):
        if (folder / name).exists():
            # a copy, because a full disk must not leave the folder without one
            write_whole(former_path(folder / name), (folder / name).read_bytes())
        write_whole(folder / name, OmegaConf.to_yaml(OmegaConf.create(content)))
    prepared.list_too_short(folder)


def _refuse_other_training(config: Mapping[str, Any], folder: Path, prepared: PreparedData) -> list[str]:
    """Return what has changed since the run was started, if the user accepts it."""
    found = changes(saved_config(folder), config)
    checkpoint = newest_good_checkpoint(folder)
    if checkpoint is not None and checkpoint.data["fingerprint"] != prepared.fingerprint:
        found.append(f"data: {checkpoint.data['fingerprint']} in the run, {prepared.fingerprint} now")
    for change in refuse_changes(found, bool(config["resume_anyway"])):
        console.print(f"changed since the run was started: {change}", soft_wrap=True)
    return found


def _run(config: Mapping[str, Any], prepared: PreparedData, run_dir: Path) -> None:
    """Train in this process, alone or as one of several."""
    watch = Stopwatch()
    checkpoint = None if config["resume"] is None else newest_good_checkpoint(run_dir)
    reading, module = _reading(config, prepared), _module(config, prepared, checkpoint)
    _announce(module, config, run_dir, checkpoint)
    first = is_first_process()
    loggers = attachments(config, "logger", run_dir) if first else []
    for logger in loggers:
        if hasattr(logger, "go_on"):
            logger.go_on(0 if checkpoint is None else checkpoint.update)
    exit_code, early = 1, ""
    try:
        trainer = build_trainer(config, loggers, attachments(config, "callbacks", run_dir))
        torch.set_num_threads(
            num_threads(config.get("torch_threads"), config["data"]["workers"]["num_workers"], trainer.num_devices)
        )
        perturb = data_parts(config).perturb
        dataset, order = reading.training_data(prepared.cuts("train"), config["seed"], perturb)
        dev = [reading.evaluation_loader(prepared.cuts(name)) for name in module.dev_names]
        loader = ResumableLoader(dataset, order, reading.workers)
        fit(trainer, module, loader, dev, None if checkpoint is None else checkpoint.path)
        early = why_early(trainer)
        if first:
            keep_former(run_dir, ("decode", "report"))
            test_names = prepared.names("test") if config["decode_test"] else ()
            training = watch.read() if checkpoint is None else {**watch.read(), "resumed_behind": checkpoint.update}
            cost, weights = measured_cost(trainer), config["weights"]
            notes = [early] if early else []
            report_training(module, reading, prepared, run_dir, loggers, training, cost, test_names, weights, notes)
        exit_code = 0
    finally:
        _close(loggers, exit_code)
    if early:
        console.print(early, soft_wrap=True)


def _announce(
    module: TrainingModule, config: Mapping[str, Any], run_dir: Path, checkpoint: LoadedCheckpoint | None
) -> None:
    num_parameters = sum(p.numel() for p in module.recogniser.parameters())
    budget = config["trainer"]["max_steps"]
    console.print(f"{num_parameters:,} parameters, {budget} updates, run folder {run_dir}", soft_wrap=True)
    if checkpoint is not None:
        for problem in checkpoint.rejected:
            console.print(f"left out: {problem}", soft_wrap=True)
        console.print(f"going on behind update {checkpoint.update}: {checkpoint.path}", soft_wrap=True)
    elif config["resume"] is not None:
        console.print("the run has no checkpoint yet: it begins again")


def _module(
    config: Mapping[str, Any], prepared: PreparedData, checkpoint: LoadedCheckpoint | None = None
) -> TrainingModule:
    updates = update_parts(config)
    num_cuts = int(prepared.splits["train"]["num_utterances"])
    data = {
        "fingerprint": prepared.fingerprint,
        "folder": str(prepared.folder),
        "notes": list(prepared.notes),
    }
    return TrainingModule(
        _recogniser(config, prepared, checkpoint),
        prepared.tokenizer,
        updates.decoder,
        updates.optimizer_factory,
        updates.schedule_factory,
        dev_names=prepared.names("dev"),
        max_duration_s=data_parts(config).batch.max_duration_s,
        extra_state={
            "format": FORMAT,
            "config": dict(config),
            "tokenizer": prepared.tokenizer.state(),
            "data": data,
        },
        max_unreadable=max_unreadable(config["data"].get("max_unreadable", 0), num_cuts),
    )


def _recogniser(config: Mapping[str, Any], prepared: PreparedData, checkpoint: LoadedCheckpoint | None) -> Recogniser:
    """Build the recogniser, which the checkpoint that will fill it bounds."""
    shapes = prepared.tokenizer.vocab_size, prepared.mean, prepared.std
    if checkpoint is None:
        return build_recogniser(config, *shapes)
    try:
        with no_more_parameters_than(checkpoint.weights):
            return build_recogniser(config, *shapes)
    except ConfigError as error:
        raise ConfigError(f"resume: {checkpoint.path}: {error}") from error


def _close(loggers: list[Any], exit_code: int) -> None:
    """End the loggers that want to know how a run ended, and say how to upload what they kept."""
    for logger in loggers:
        upload = logger.close(exit_code) if hasattr(logger, "close") else None
        if upload:
            console.print(f"upload this run: {upload}", soft_wrap=True)


if __name__ == "__main__":
    # by its own name launchers can hand it to other processes
    from asr.cli import train as named

    named.main()
