"""Jobs of a sweep: each a fresh process, which shares no state; finished ones are skipped, others are resumed.

Jobs that run at the same time on one machine each get GPUs of their own, or share each with a number of others.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, read_write
from rich.table import Table

from asr.processes import TRY_AGAIN, Terminated, die_with_parent, end_with, listen
from asr.run.command_line import override_key
from asr.run.compose import Composed
from asr.run.folder import LATEST, has_begun
from asr.run.options import Sweep, has_effect
from asr.runs.files import SUMMARY, best_dev_wer
from werdict.console import PlainConsole, one_line
from werdict.errors import ConfigError
from werdict.files import flatten, get_nested, lock, read_json, write_whole
from werdict.formatting import percent

POLL_S = 0.5
VARIABLE = "CUDA_VISIBLE_DEVICES"
NAME = re.compile(r"\w[\w.+-]*")
LONGEST_LABEL = 80
SWEPT = "sweep.swept"  # key by which each job is told what its sweep varies
RECORDS = "jobs"  # folder of a sweep
KILLED = 128  # exit codes above it are signals
# variables that belong to one run: of wandb, and of the process that SLURM or torchrun has started for the sweep
OF_ONE_RUN = re.compile(
    r"WANDB_((RUN_)?(ID|NAME)|RESUME(_FROM)?|FORK_FROM|SWEEP_ID|SWEEP_PARAM_PATH)"
    r"|SLURM_(NTASKS|NPROCS|TASKS|PROCID|LOCALID|NODEID|STEP|GTIDS).*"
    r"|TORCHELASTIC_.*|((LOCAL|GROUP|ROLE|NODE)_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
)
ID = re.compile(r"logger\.wandb\.(id|version)")  # keys of the id of one run
TIMEOUT_S = 60  # for SLURM's answer, which is late while many jobs are preempted

console = PlainConsole()


@contextlib.contextmanager
def claimed_gpus(count: int | None, jobs_per_gpu: int | None = None) -> Iterator[dict[str, str]]:
    """Wait until this many GPUs are free, and yield an environment in which only they are visible.

    A GPU is free when no other job holds its lock; locks end with the processes that hold them. A job that shares its
    GPUs waits for one that wants them alone, and the other way round.

    Args:
        count: GPUs of a job; None: all that there are, shared with others, or one, if GPUs are shared by a number.
        jobs_per_gpu: how many jobs share a GPU; None: as 1.

    Raises:
        ConfigError: there are not that many GPUs.
    """
    shared = jobs_per_gpu or 1
    if count is None and shared == 1:
        yield dict(os.environ)
        return
    names, num_gpus = visible_gpus(), 1 if count is None else count
    if num_gpus > len(names):
        raise ConfigError(
            f"sweep.gpus_per_job={count} sweep.jobs_per_gpu={jobs_per_gpu}: this machine has {len(names)} GPUs"
        )
    with contextlib.ExitStack() as held:
        yield {**os.environ, VARIABLE: ",".join(_claim(names, num_gpus, shared, held))}


def visible_gpus() -> list[str]:
    """Return the names by which this process may use GPUs."""
    visible = os.environ.get(VARIABLE)
    if visible is None:
        import torch  # takes seconds, which a sweep that shares its GPUs does not need

        return [str(index) for index in range(torch.cuda.device_count())]
    return [name.strip() for name in visible.split(",") if name.strip()]


def _claim(names: list[str], count: int, shared: int, held: contextlib.ExitStack) -> list[str]:
    """Return the GPUs with the fewest jobs; all or none, so that two jobs never wait for each other."""
    while True:
        with contextlib.ExitStack() as attempt:
            claimed: list[str] = []
            for place in range(shared):
                for name in names:
                    if len(claimed) < count and name not in claimed and _locked(name, place, shared > 1, attempt):
                        claimed.append(name)
            if len(claimed) == count:
                held.push(attempt.pop_all())
                return claimed
        time.sleep(POLL_S)


def _locked(name: str, place: int, is_shared: bool, held: contextlib.ExitStack) -> bool:
    """Lock a GPU, and a place on it if it is shared; return whether both were free."""
    folder = Path(tempfile.gettempdir()) / f"werdict-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    # each place has its lock; that of the GPU separates jobs that share it from one that has it alone
    locks = [(name, fcntl.LOCK_SH), (f"{name}.{place}", fcntl.LOCK_EX)] if is_shared else [(name, fcntl.LOCK_EX)]
    with contextlib.ExitStack() as attempt:
        for file_name, kind in locks:
            try:
                file = attempt.enter_context(open(folder / file_name.replace("/", "_"), "a"))
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        held.push(attempt.pop_all())
    return True


@dataclass(frozen=True)
class JobRecord:
    """What is known of a job, as its file says.

    Attributes:
        name: of its folder.
        overrides: of the job.
        status: how it stands.
        exit_code: of its process; None while it runs, and if a later command left it alone.
        seconds: that the last process took; 0 if that is not known.
    """

    name: str
    overrides: list[str]
    status: str  # running, finished, failed, interrupted
    exit_code: int | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the job is not finished."""
        return self.status != "finished"

    @property
    def was_ended(self) -> bool:
        """Whether something else than the training itself ended it, or has not ended it yet."""
        killed = self.exit_code is not None and (self.exit_code < 0 or self.exit_code > KILLED)
        return self.status in ("running", "interrupted") or killed

    def save(self, sweep_dir: Path) -> None:
        """Write the record of the job."""
        folder = sweep_dir / RECORDS
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{self.name}.json", json.dumps(asdict(self), indent=1))


def records(sweep_dir: Path) -> list[JobRecord]:
    """Return what is known of all jobs of a sweep, in the order of their overrides."""
    jobs = [JobRecord(**read_json(path)) for path in (sweep_dir / RECORDS).glob("*.json")]
    return sorted(jobs, key=lambda record: (record.overrides, record.name))


def check_sweep_name(name: object, key: str = "sweep.name") -> None:
    """Refuse a name that is no name of a folder.

    Args:
        name: of a sweep; Hydra reads 2024 as a number.
        key: that it was given as.

    Raises:
        ConfigError: it holds more than letters, digits and ``_ . + -``, or is that of the link to the newest run.
    """
    if name is None or not NAME.fullmatch(str(name)) or name == LATEST:
        raise ConfigError(
            f"{key} must consist of letters, digits and _ . + -, as in first-try, and not be {LATEST}, given {name!r}"
        )


def job_name(overrides: Sequence[str], swept: Sequence[str], values: Mapping[str, Any], sweep_dir: Path) -> str:
    """Return the name of a job's folder: what is swept, shortened, and a hash of all overrides and what is trained.

    What does not change the training counts only if it is swept, so that a sweep may be resumed with other threads.
    A job that the sweep has already keeps its name, also if other keys are swept now.

    Args:
        overrides: of the job.
        swept: keys.
        values: of the config by dotted key, unresolved.
        sweep_dir: folder of the sweep.
    """
    relevant = [word for word in overrides if override_key(word) in swept or _tells(override_key(word))]
    trained = {key: value for key, value in values.items() if _tells(key)}
    # the label may be cut, and options that do not change the training are only in the overrides
    digest = hashlib.sha256(json.dumps([trained, relevant], sort_keys=True, default=str).encode()).hexdigest()[:8]
    lock_path = next((sweep_dir / RECORDS).glob(f"*-{digest}.lock"), None)
    # sweepers that do not say what they sweep put it first
    shown = [word for word in relevant if override_key(word) in swept] or relevant
    return lock_path.stem if lock_path else f"{_label(shown) if shown else 'default'}-{digest}"


def _label(overrides: Sequence[str]) -> str:
    """Return overrides as part of a name; a long one is cut, except for the seed, in which many jobs differ."""
    parts = [word.partition("=") for word in sorted(overrides, key=lambda word: override_key(word) == "seed")]
    # lr-0.01 of optimizer.lr=0.01, without special characters of Hydra's grammar: folders are given as resume=…
    texts = [re.sub(r"[^\w.]+", "-", f"{key.rpartition('.')[2]}-{value}").strip("-") for key, _, value in parts]
    last = f"_{texts[-1]}" if override_key(parts[-1][0]) == "seed" else ""
    whole = "_".join(texts)
    return whole if len(whole) <= LONGEST_LABEL else whole[: LONGEST_LABEL - len(last)] + last


def _tells(key: str) -> bool:
    """Return whether jobs that differ in a key are different jobs: trials leave the test sets alone, unlike results."""
    return key == "decode_test" or has_effect(key)


def swept_keys(overrides: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """Return the keys of a sweep's overrides, and of its sweeper's ``params``, that vary."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return sorted(
        {override.key_or_group for override in parsed if override.is_sweep_override()} | {*map(override_key, params)}
    )


def run_job(composed: Composed) -> float:
    """Run a job: start it, resume it if it was interrupted, or leave it alone if it is finished.

    A job that fails does not stop the others: it is recorded as failed. If a signal asks
    this process to end, it forwards the signal to the job and waits for the job's end.

    Args:
        composed: of the job; if others run at the same time, its output goes to ``jobs/<name>.log``, and not to the
            terminal, where it would be mixed with theirs.

    Returns:
        The lowest WER on the development sets, which is what sweepers minimize; infinity if the job is not finished,
        and not a number if another process is running it.

    Raises:
        ConfigError: all jobs would have one id in wandb.
        Terminated: a signal asked this process to end.
    """
    sweep_dir = composed.sweep_dir
    assert sweep_dir is not None
    sweep: Sweep = composed.options.sweep
    given_ids = [word for word in composed.words if ID.fullmatch(override_key(word))]
    if shared := [word for word in given_ids if override_key(word) not in sweep.swept]:
        raise ConfigError(f"{shared[0]}: every job of a sweep is a run of its own in wandb; leave it out")
    overrides = [
        word for word in composed.words if override_key(word) != SWEPT
    ]  # not the user's, and of the sweep alone
    name = job_name(overrides, sweep.swept, flatten(composed.unresolved()), sweep_dir)
    folder = (sweep_dir / name).resolve()
    (sweep_dir / RECORDS).mkdir(parents=True, exist_ok=True)
    with open(sweep_dir / RECORDS / f"{name}.lock", "a") as file:
        os.utime(file.fileno())  # records when the job was last requested, see ``asked_for``
        try:
            lock(file)  # two sweeps of one name must not start a job twice
        except BlockingIOError:
            print(f"{name}: another process is running it: skipped", flush=True)
            return math.nan
        if is_finished(folder):
            # recorded with the current overrides and the earlier duration
            seconds = next((record.seconds for record in records(sweep_dir) if record.name == name), 0.0)
            JobRecord(name, overrides, "finished", seconds=seconds).save(sweep_dir)
            print(f"{name}: already finished: skipped", flush=True)
        else:
            # not read from a run folder: where metrics are sent, and whose code is run
            repeated = [word for word in overrides if override_key(word).partition(".")[0] in ("logger", "recipes_dir")]
            # relative: the name of the current folder may have characters that no override can hold
            place, is_resumed = sweep_dir / name, has_begun(folder)
            arguments = (
                [f"resume={place}", *repeated] if is_resumed else [*composed.folders, *overrides, f"run_dir={place}"]
            )
            print(f"{name}: {'resuming' if is_resumed else 'starting'}", flush=True)
            _run_to_end(JobRecord(name, overrides, "running"), arguments, sweep, sweep_dir, composed.is_parallel)
        return best_dev_wer(folder) if is_finished(folder) else math.inf


def asked_for(sweep_dir: Path) -> dict[str, int]:
    """Return when each job of a sweep was asked for last, by a command that started it or left it alone."""
    return {path.stem: path.stat().st_mtime_ns for path in (sweep_dir / RECORDS).glob("*.lock")}


def asked_since(sweep_dir: Path, before: Mapping[str, int]) -> list[JobRecord]:
    """Return what is known of the jobs of a sweep that were asked for since ``asked_for`` returned ``before``."""
    times = asked_for(sweep_dir)
    return [job for job in records(sweep_dir) if times.get(job.name) != before.get(job.name)]


def _run_to_end(record: JobRecord, arguments: Sequence[str], sweep: Sweep, sweep_dir: Path, to_file: bool) -> None:
    """Start a job, wait for its end, and record how it went."""
    record.save(sweep_dir)
    start, code = time.monotonic(), None
    try:
        log = sweep_dir / RECORDS / f"{record.name}.log"
        with log.open("a", encoding="utf-8") if to_file else contextlib.nullcontext() as output:
            if to_file:
                print(f"output: {log}", flush=True)
            code = _run(arguments, sweep, output)
    finally:
        status = "interrupted" if code in (None, TRY_AGAIN) else "failed"
        if not code and is_finished((sweep_dir / record.name).resolve()):
            status = "finished"
        seconds = round(time.monotonic() - start, 1)
        replace(record, status=status, exit_code=code, seconds=seconds).save(sweep_dir)
    print(f"{record.name}: {status}" + (f" with exit code {code}" if code else ""), flush=True)
    if code == TRY_AGAIN:
        queue_again()


def _run(arguments: Sequence[str], sweep: Sweep, output: IO[str] | None) -> int:
    with claimed_gpus(sweep.gpus_per_job, sweep.jobs_per_gpu) as environment:
        process = subprocess.Popen(
            [sys.executable, "-m", "asr.commands", "train", *arguments],
            env={name: value for name, value in environment.items() if not OF_ONE_RUN.fullmatch(name)},
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )
        try:
            return process.wait()
        # submitit raises SystemExit or an error of its own from its handler of SIGUSR2; after a Ctrl-C, of which the
        # job may know already, SIGTERM is no second one
        except (SystemExit, KeyboardInterrupt, Exception) as ended:
            process.send_signal(ended.signal if isinstance(ended, Terminated) else signal.SIGTERM)
            process.wait()  # until its checkpoint is written: it would die with this process
            raise
        finally:
            process.kill()
            process.wait()


def is_finished(folder: Path) -> bool:
    """Return whether a run has left its results."""
    return (folder / SUMMARY).is_file()


def queue_again() -> None:
    """Queue the job of this process again, if submitit has started it, and end this process.

    SLURM itself queues a job again that it has to kill. One that saves and ends within its grace time
    (``GraceTime`` of a partition) counts as completed, and a sweep would be left with half a run.

    A job that is being cancelled, or has reached its time limit, stays ended: SLURM no longer calls it running.

    Raises:
        SystemExit: the job is queued again, and has no result yet.
    """
    job_id = os.environ.get("SLURM_JOB_ID")
    if os.environ.get("SUBMITIT_EXECUTOR") != "slurm" or job_id is None:
        return
    state = _ask("squeue", "--noheader", "--format=%T", f"--jobs={job_id}")
    if state.stdout.strip() != "RUNNING":
        return
    queued = _ask("scontrol", "requeue", job_id)
    if queued.returncode:
        why = queued.stderr.strip()
        print(f"SLURM does not queue job {job_id} again: {why}; the command of the sweep resumes its run", flush=True)
        return
    print(f"job {job_id} is queued again, and will resume its run", flush=True)
    raise SystemExit(TRY_AGAIN)


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, stdout="", stderr=str(error))


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
        if swept := swept_keys(config.hydra.overrides.task, getattr(config.hydra.sweeper, "params", None) or {}):
            with read_write(config.hydra):  # of all jobs, whatever sweeper and launcher start them
                config.hydra.overrides.hydra.append(f"++{SWEPT}=[{','.join(swept)}]")
        if config.hydra.launcher._target_.endswith((".BasicLauncher", ".ParallelLauncher")):
            end_with(lambda: resume_line(sweep_dir))

            def interrupt(*_: object) -> None:
                raise KeyboardInterrupt(resume_line(sweep_dir))

            signal.signal(signal.SIGINT, interrupt)
        else:
            listen(signal.SIG_DFL)  # the launcher ends the processes of the jobs in its own way

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
        tests = (get_nested(read_json(folder / SUMMARY), "test") or {}).values() if is_finished(folder) else ()
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
