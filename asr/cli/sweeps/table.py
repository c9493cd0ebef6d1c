"""How the jobs of a sweep ended: a table, a line, and an exit code."""

from __future__ import annotations

import math
import shutil
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf, read_write
from rich.table import Table

from asr.cli.config.effects import check_effects, check_measuring, check_vocab_size
from asr.cli.config.options import check_options
from asr.cli.config.words import override_key
from asr.cli.errors import ConfigError
from asr.cli.sweeps.jobs import (
    asked_for,
    begun,
    best_dev_wer,
    check_sweep_name,
    check_swept_once,
    finished_jobs,
    is_finished,
    swept_free_keys,
)
from asr.cli.sweeps.records import RECORDS, JobRecord, records
from asr.compare.result import Target
from asr.console import PlainConsole, one_line
from asr.errors import RunFailed
from asr.evaluation.formatting import percent
from asr.nested import at, number_at
from asr.plain_data import read_json, read_yaml
from asr.run_folder import check_sweep_folder
from asr.signals import end_by_default, end_with

console = PlainConsole()


class SweepTable(Callback):
    """Checks a sweep before it starts and tells its jobs what is swept; prints the status of every job at its end."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}  # before this command
        self._finished: set[str] = set()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse an invalid name or target, folders that jobs get by themselves, and a hostile folder; heed signals.

        Hydra turns errors of callbacks into warnings, so that this exits the program.
        """
        try:
            check_sweep_name(config.sweep.name)
            if config.sweep.target_wer is not None:
                Target(config.sweep.target_wer, is_fixed=True)  # which checks it
            for key in ("run_dir", "resume"):
                if config.get(key) is not None:
                    raise ConfigError(f"{key}={config[key]}: jobs of a sweep get folders of their own, below runs/")
            if config.hydra.launcher._target_.endswith(".SlurmLauncher") and shutil.which("srun") is None:
                raise RunFailed(
                    "hydra/launcher=slurm: there is no program srun, so that this machine belongs to no SLURM cluster; "
                    "start the sweep where it is, or choose another launcher, such as hydra/launcher=parallel"
                )
            check_sweep_folder(Path(config.hydra.sweep.dir))
            self._asked = asked_for(Path(config.hydra.sweep.dir))
            self._finished = finished_jobs(Path(config.hydra.sweep.dir))
            if "optimizers" in config.sweep and not config.hydra.sweeper._target_.endswith(".TunedSweeper"):
                raise ConfigError("hydra/sweeper: sweep=optimizers and sweep=lr need their own sweeper; leave it out")
            check_effects(config, config.hydra)
            # what is swept is not composed yet
            if not _is_swept("tokenizer", config):
                check_vocab_size(config, config.hydra.overrides.task)
            check_swept_once(config.hydra.overrides.task)
            swept = swept_free_keys(config.hydra.overrides.task, config.hydra.sweeper.get("params") or {})
        except (ValueError, RunFailed) as error:
            print(f"asr-train: {one_line(str(error))}", file=sys.stderr)
            raise SystemExit(1 if isinstance(error, RunFailed) else 2) from None
        if swept:
            with read_write(config.hydra):  # of all jobs, whatever sweeper and launcher start them
                config.hydra.overrides.hydra.append(f"++sweep.swept=[{','.join(swept)}]")
        # what every sweeper of Hydra's, and ours, calls before it launches
        Sweeper.validate_batch_is_legal = check_jobs  # type: ignore[assignment,method-assign]
        if config.hydra.launcher._target_.endswith((".BasicLauncher", ".ParallelLauncher")):
            end_with(lambda: resume_line(Path(config.hydra.sweep.dir)))

            def interrupt(*_: object) -> None:
                raise KeyboardInterrupt(resume_line(Path(config.hydra.sweep.dir)).removeprefix("; "))

            signal.signal(signal.SIGINT, interrupt)
        else:
            end_by_default()  # the launcher ends the processes of the jobs in its own way

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the table, and exit with 1 if a job of this command is not finished."""
        sweep_dir = Path(config.hydra.sweep.dir)
        found = [record for record in records(sweep_dir) if _has_run(record, sweep_dir)]
        if not found:
            print("asr-train: the sweep has no job: nothing matches what is swept", file=sys.stderr)
            raise SystemExit(2)
        console.print(job_table(sweep_dir, found, self._finished))
        target = config.sweep.target_wer
        before = [record.name for record in found if record.name in self._finished and not record.failed]
        if target is not None and any(_target_of(sweep_dir / name) != target for name in before):
            console.print_line(
                f"runs that were finished before do not hold sweep.target_wer={target}: asr-compare "
                f"target_wer={target} asks for it, as one chosen after the runs"
            )
        now = asked_for(sweep_dir)
        own = [record for record in found if now.get(record.name) != self._asked.get(record.name)]
        others = [record.name for record in found if record.failed and record not in own]
        if others:
            console.print_line(f"not finished, and of another command in this sweep: {', '.join(others)}")
        console.print_line(last_line(sweep_dir, [record for record in found if record.name not in others], len(before)))
        if any(record.failed for record in own):
            raise SystemExit(1)


def check_jobs(sweeper: Sweeper, batch: Sequence[Sequence[str]]) -> None:
    """Compose the config of every job, and refuse options of any, before the first is started.

    Args:
        sweeper: whose method this is.
        batch: overrides of each job.

    Raises:
        ConfigError: names the key, what was given and what is allowed.
    """
    for words in batch:
        composed_job(sweeper, words)


def composed_job(sweeper: Sweeper, words: Sequence[str]) -> DictConfig:
    """Return the config of a job, without Hydra's own node.

    Args:
        sweeper: of the sweep.
        words: overrides of the job.

    Raises:
        ConfigError: names the key, what was given and what is allowed.
    """
    assert sweeper.hydra_context is not None
    assert sweeper.config is not None
    config = sweeper.hydra_context.config_loader.load_sweep_config(sweeper.config, list(words))
    config = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    check_options("train", config)
    check_measuring(config, "-m, which starts runs")
    return config


def _target_of(folder: Path) -> object:
    try:
        return at(read_yaml(folder / "config.yaml"), "sweep", "target_wer")
    except (ValueError, OSError):
        return None


def _is_swept(group: str, config: DictConfig) -> bool:
    """Return whether jobs may choose from a group otherwise than the sweep's own config has."""
    if group in (config.hydra.sweeper.get("params") or {}):
        return True
    typed = [word.partition("=")[2] for word in config.hydra.overrides.task if override_key(word) == group]
    return bool(typed) and typed[-1] != config.hydra.runtime.choices[group]


def _has_run(record: JobRecord, sweep_dir: Path) -> bool:
    """Return whether a job that its file calls finished has left a report; a line says so if not."""
    has_run = record.failed or is_finished(sweep_dir / record.name)
    if not has_run:
        console.print_line(f"left out: {record.name}: its record says {record.status}, but its folder holds no report")
    return has_run


def job_table(sweep_dir: Path, found: list[JobRecord], before: Collection[str] = ()) -> Table:
    """Return the table of all jobs of a sweep; those that were finished before its last command are marked."""
    table = Table(title=f"sweep {sweep_dir.name}")
    for column in ("job", "status", "WER dev %", "WER test %", "minutes"):
        table.add_column(column, justify="left" if column in ("job", "status") else "right", overflow="fold")
    shared = set.intersection(*(set(record.overrides) for record in found)) if len(found) > 1 else set()
    for record in found:
        folder = sweep_dir / record.name
        wers = [best_dev_wer(folder), *_test_wers(folder)]
        style = "red" if record.failed else None
        status = "finished before" if record.name in before and not record.failed else record.status
        minutes = f"{record.seconds / 60:.1f}" if record.seconds else ""
        words = [word for word in record.overrides if word not in shared and override_key(word) != "sweep.tuned"]
        table.add_row(
            " ".join(words) or record.name,
            status + (f" (exit code {record.exit_code})" if record.exit_code else ""),
            percent(wers[0]),
            " / ".join(map(percent, wers[1:])),
            minutes,
            style=style,
        )
    return table


def last_line(sweep_dir: Path, found: list[JobRecord], before: int) -> str:
    """Return what happened in one line, and what can be done next.

    Args:
        sweep_dir: of the sweep.
        found: the jobs to be told of.
        before: number of those that were finished before.
    """
    failed = [record.name for record in found if record.failed]
    line = f"{len(found)} jobs: {len(found) - len(failed)} finished" + (f" ({before} of them before)" if before else "")
    if failed:
        logs = f" (logs in {sweep_dir / RECORDS})" if any((sweep_dir / RECORDS).glob("*.log")) else ""
        refused = [one.name for one in found if one.exit_code == 2 and not begun(sweep_dir / one.name)]
        again = f"; refused, for their options to be corrected: {', '.join(refused)}" if refused else ""
        if len(refused) < len(failed):
            again += f"; the same command again resumes {'the others' if refused else 'them'}"
        return f"{line}, {len(failed)} not: {', '.join(failed)}{logs}{again}"
    return f"{line}. To compare them: asr-compare sweep={sweep_dir.name}"


def resume_line(sweep_dir: Path) -> str:
    """Return the status of the jobs after a signal has ended the sweep, and how to resume it."""
    found = records(sweep_dir)
    again = f"to resume: the same command again, with sweep.name={sweep_dir.name}"
    ended = ", ".join(record.name for record in found if not record.failed) or "none"
    others = ", ".join(record.name for record in found if record.failed) or "none"
    return f"; {again}; finished jobs: {ended}; not finished: {others}"


def _test_wers(folder: Path) -> list[float]:
    """Return the WERs on test sets that a finished run has left; a job that is not finished has left none."""
    path = folder / "report" / "summary.json"
    if not path.is_file():
        return []
    try:
        sets = at(read_json(path), "test")
    except ValueError as error:
        console.print_line(f"the WER on test of {folder.name} is not known: {error}")
        return []
    wers = [number_at(found, "wer") for found in sets.values()] if isinstance(sets, dict) else []
    return [math.inf if wer is None else wer for wer in wers]
