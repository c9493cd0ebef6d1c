"""``asr-train``: from a recipe to a WER."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from asr.commands.app import run_app
from asr.console import PlainConsole
from asr.inference.transcripts_lm import AFTER_TRAINING, search_with_transcripts
from asr.processes import INTERRUPTED, TRY_AGAIN, is_first_process
from asr.run.build import Plan, plan_run, settle_classes
from asr.run.command_line import added_config_folders
from asr.run.compose import (
    difference_from_recipe,
    differs,
    recipe_of,
    record_accepted,
    recorded_overrides,
    saved_config,
)
from asr.run.folder import (
    FAILED,
    LATEST,
    backup_existing,
    backup_path,
    claim_run_folder,
    create_run_folder,
    lock_run_dir,
    point_latest,
)
from asr.run.parts import build_all, num_threads
from asr.run.start import LAST_RECORDED, accept_changes, record_source, saying_how_to_resume, start_from
from asr.run.trainer import build_trainer
from asr.safe_io import write_whole
from asr.training.callbacks.measurements import measured_cost
from asr.training.checkpoints import explaining_failed_writes
from asr.training.fit import early_stop_reason, fit
from asr.training.processes import broadcast_object
from asr.training.report import Stopwatch, report_run, start_lines
from asr.training.speech_data_module import SpeechDataModule

console = PlainConsole(quiet=not is_first_process())


def main() -> None:
    """Run ``asr-train``."""
    run_app("train", run)


def run(config: DictConfig) -> float | None:
    """Prepare missing data, train, decode the test sets; in a sweep, run one job and return its WER on dev."""
    job = HydraConfig.get()
    if job.mode == RunMode.MULTIRUN:
        settle_classes(config)
        return _run_job(config, job)
    run_once(plan_run(config))
    return None


def run_once(plan: Plan) -> Path | None:
    """Train, decode the test sets and return the run's folder; None if only the batch size was measured."""
    # what few runs need is imported where they do
    if plan.config["find_batch_size"]:
        from asr.commands.find_batch_size import find_batch_size

        find_batch_size(plan.config, plan.prepared, plan.data_module, plan.data.perturb, plan.module, plan.trainer)
        return None
    with _open_run_folder(plan) as run_dir:
        if plan.needs_launcher:
            from asr.training.processes import launch

            overrides = [*added_config_folders(plan.job.runtime.config_sources), *plan.job.overrides.task]
            if code := launch("train", overrides, plan.trainer.num_devices, run_dir):
                if code not in (TRY_AGAIN, INTERRUPTED):
                    _record_failure(run_dir, f"exit code {code}")
                sys.exit(code)
        else:
            _fit_and_report(plan, run_dir)
        return run_dir


def _run_job(config: DictConfig, job: Any) -> float:
    from asr.sweeps.jobs import run_job

    raw = cast(dict[str, Any], OmegaConf.to_container(config))
    # parallel jobs would mix their output on the terminal
    parallel = not str(job.launcher._target_).endswith(".BasicLauncher")
    places = added_config_folders(job.runtime.config_sources)
    return run_job(job.overrides.task, raw, Path(job.sweep.dir), to_file=parallel, places=places)


@contextlib.contextmanager
def _open_run_folder(plan: Plan) -> Iterator[Path]:
    """Create or reopen the run's folder; the first process, or the launcher, locks it and records the start."""
    if plan.launched is not None or plan.needs_launcher:
        run_dir = plan.launched or plan.resumed or _new_run_folder(plan)
    else:
        run_dir = broadcast_object(plan.trainer, lambda: plan.resumed or _new_run_folder(plan))
    owner = plan.launched is None and is_first_process()
    with (
        lock_run_dir(run_dir) if owner else contextlib.nullcontext(),
        saying_how_to_resume(run_dir),
    ):
        if owner:
            _record_start(plan, run_dir)
            (run_dir / FAILED).unlink(missing_ok=True)
        try:
            yield run_dir
        except Exception as error:
            if owner:
                _record_failure(run_dir, f"{type(error).__name__}: {error}")
            raise


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
    overrides = list(plan.job.overrides.task)
    if plan.resumed is not None:
        accept_changes(plan.config, plan.resumed, plan.checkpoint, plan.changes, lambda: plan.module)
        if not plan.changes and not differs(saved_config(plan.resumed), plan.config):
            return
        if plan.changes:
            record_accepted(folder, plan.changes)
        overrides = recorded_overrides(plan.resumed, overrides)
    plan.prepared.record(folder)
    if plan.source is not None and plan.resumed is None:
        record_source(plan.source, folder)
    for name, content in (("config.yaml", dict(plan.config)), (LAST_RECORDED, overrides)):
        if (folder / name).exists():
            # copied, not renamed: a full disk must not leave the folder without the file
            write_whole(backup_path(folder / name), (folder / name).read_bytes())
        write_whole(folder / name, OmegaConf.to_yaml(OmegaConf.create(content)))
    plan.prepared.list_too_short(folder)


def _record_failure(run_dir: Path, why: str) -> None:
    """Let ``asr-runs`` know that the run has ended by itself."""
    with contextlib.suppress(OSError):  # a full disk, which may be the reason
        write_whole(run_dir / FAILED, f"{why}\n")


def _fit_and_report(plan: Plan, run_dir: Path) -> None:
    """Train in this process, which may be one of several; the first one decodes and reports."""
    watch, config = Stopwatch(), plan.config
    checkpoint, module = plan.checkpoint, plan.module
    if checkpoint is None and plan.source is not None:
        console.print_line(start_from(plan.source, module, config, run_dir))
    for line in start_lines(module.recognizer, config, run_dir, checkpoint):
        console.print_line(line)
    loggers = build_all(config, "logger", run_dir) if is_first_process() else []
    with _open_loggers(loggers, 0 if checkpoint is None else checkpoint.update):
        callbacks = build_all(config, "callbacks", run_dir)
        trainer = build_trainer(config, loggers, callbacks, default_root_dir=str(run_dir))
        num_workers = plan.data_module.workers.count
        torch.set_num_threads(num_threads(config.get("torch_threads"), num_workers, trainer.num_devices))
        with explaining_failed_writes(run_dir):
            parts = module.recognizer, plan.data_module, plan.prepared, plan.data.text
            lm_order = config["data"]["transcripts_lm"] if is_first_process() else 0
            search = search_with_transcripts(*parts, run_dir, lm_order)
        data = SpeechDataModule(plan.prepared, plan.data_module, config["seed"], plan.data.perturb)
        fit(trainer, module, data, checkpoint)
        early = early_stop_reason(trainer)
        if is_first_process():
            for before, backup in backup_existing(run_dir, ("decode", "report", *AFTER_TRAINING)):
                console.print_line(f"the earlier {before} is kept as {backup}")
            report_run(
                module,
                data,
                run_dir,
                loggers,
                training=watch.read()
                | ({} if checkpoint is None else {"resumed_after": checkpoint.update})
                | ({"num_unreadable": unreadable} if (unreadable := module.unreadable.num_utterances) else {}),
                cost=measured_cost(trainer),
                config=config,
                recipe=recipe_of(run_dir),
                notes=[early] if early else [],
                difference=difference_from_recipe(config, run_dir),
                search=search,
            )
    if early:
        console.print_line(early)


@contextlib.contextmanager
def _open_loggers(loggers: Sequence[Any], update: int) -> Iterator[None]:
    """Let loggers continue after an update, 0 for a new run; close them at the end, as failed after an exception."""
    for logger in loggers:
        if hasattr(logger, "resume"):
            logger.resume(update)
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        for logger in loggers:
            upload = logger.close(exit_code) if hasattr(logger, "close") else None
            if upload:
                console.print_line(f"upload this run: {upload}")


if __name__ == "__main__":
    # launchers of parallel sweeps pickle the task: another process finds it by this module's name, not in __main__
    from asr.commands import train as named

    named.main()
