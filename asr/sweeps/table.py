"""How the jobs of a sweep ended: a table, a line, and an exit code."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, read_write
from rich.table import Table

from asr.config.command_line import override_key
from asr.console import PlainConsole, one_line
from asr.errors import ConfigError
from asr.evaluation.formatting import percent
from asr.evaluation.metrics_csv import best_dev_wer
from asr.plain_data import at, read_json
from asr.processes import end_by_default, end_with
from asr.sweeps.jobs import RECORDS, SWEPT, JobRecord, asked_for, asked_since, check_sweep_name, records, swept_keys

console = PlainConsole()


class SweepTable(Callback):
    """Tells the jobs of a sweep what is swept, and prints the status of every job at its end."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}  # before this command

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse an invalid name, tell the jobs what is swept, and handle signals.

        Hydra turns errors of callbacks into warnings, so that this exits the program.
        """
        sweep_dir = Path(config.hydra.sweep.dir)
        try:
            check_sweep_name(config.sweep.name)
        except ConfigError as error:
            print(f"asr-train: {one_line(str(error))}", file=sys.stderr)
            raise SystemExit(2) from None
        self._asked = asked_for(sweep_dir)
        if swept := swept_keys(config.hydra.overrides.task, config.hydra.sweeper.get("params") or {}):
            with read_write(config.hydra):  # of all jobs, whatever sweeper and launcher start them
                config.hydra.overrides.hydra.append(f"++{SWEPT}=[{','.join(swept)}]")
        if config.hydra.launcher._target_.endswith((".BasicLauncher", ".ParallelLauncher")):
            end_with(lambda: resume_line(sweep_dir))

            def interrupt(*_: object) -> None:
                raise KeyboardInterrupt(resume_line(sweep_dir))

            signal.signal(signal.SIGINT, interrupt)
        else:
            end_by_default()  # the launcher ends the processes of the jobs in its own way

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the table, and exit with 1 if a job of this command is not finished."""
        sweep_dir = Path(config.hydra.sweep.dir)
        jobs = records(sweep_dir)
        if not jobs:
            print("asr-train: the sweep has no job: nothing matches what is swept", file=sys.stderr)
            raise SystemExit(2)
        own_jobs = asked_since(sweep_dir, self._asked)
        # without an exit code: left alone by this command
        before = {job.name for job in jobs if not job.failed and (job not in own_jobs or job.exit_code is None)}
        console.print(job_table(sweep_dir, jobs, before))
        others = [record.name for record in jobs if record.failed and record not in own_jobs]
        if others:
            console.print_line(f"not finished, started by another command of this sweep: {', '.join(others)}")
        console.print_line(last_line(sweep_dir, [record for record in jobs if record.name not in others], len(before)))
        if any(record.failed for record in own_jobs):
            raise SystemExit(1)


def job_table(sweep_dir: Path, jobs: list[JobRecord], before: Collection[str] = ()) -> Table:
    """Return the table of all jobs of a sweep; those that were finished before its last command are marked."""
    table = Table(title=f"sweep {sweep_dir.name}")
    for column in ("job", "status", "WER dev %", "WER test %", "minutes"):
        table.add_column(column, justify="left" if column in ("job", "status") else "right", overflow="fold")
    shared = set.intersection(*(set(record.overrides) for record in jobs)) if len(jobs) > 1 else set()
    for record in jobs:
        folder = sweep_dir / record.name
        summary = folder / "report" / "summary.json"
        tests = (at(read_json(summary), "test") or {}).values() if summary.is_file() else ()
        wers = [best_dev_wer(folder), *(math.inf if test.get("wer") is None else test["wer"] for test in tests)]
        style = "red" if record.failed else None
        status = "finished before" if record.name in before else record.status
        minutes = f"{record.seconds / 60:.1f}" if record.seconds else ""
        swept = [word for word in record.overrides if word not in shared and override_key(word) != "sweep.tuned"]
        table.add_row(
            " ".join(swept) or record.name,
            status + (f" (exit code {record.exit_code})" if record.exit_code else ""),
            percent(wers[0]),
            " / ".join(map(percent, wers[1:])),
            minutes,
            style=style,
        )
    return table


def last_line(sweep_dir: Path, jobs: list[JobRecord], before: int) -> str:
    """Return what happened to jobs, of which some were finished ``before``, in one line, and what can be done next."""
    failed = [record.name for record in jobs if record.failed]
    line = f"{len(jobs)} jobs: {len(jobs) - len(failed)} finished" + (f" ({before} of them before)" if before else "")
    if failed:
        logs = f" (logs in {sweep_dir / RECORDS})" if any((sweep_dir / RECORDS).glob("*.log")) else ""
        return f"{line}, {len(failed)} not: {', '.join(failed)}{logs}; run the same command to start or resume them"
    return f"{line}. To compare them: asr-compare sweep={sweep_dir.name}"


def resume_line(sweep_dir: Path) -> str:
    """Return the status of the jobs after a signal has ended the sweep, and how to resume it."""
    jobs = records(sweep_dir)
    again = f"to resume: run the same command again with sweep.name={sweep_dir.name}"
    ended = ", ".join(record.name for record in jobs if not record.failed) or "none"
    others = ", ".join(record.name for record in jobs if record.failed) or "none"
    return f"; {again}; finished jobs: {ended}; not finished: {others}"
