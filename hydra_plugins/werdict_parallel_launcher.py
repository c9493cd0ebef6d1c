"""Several jobs of a sweep at a time on this machine, which all end with the sweep."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from asr.commands.app import own_task
from asr.processes import ENDING, Terminated, die_with_parent, not_ignored
from werdict.errors import RunFailed

HANDLED = (signal.SIGINT, *ENDING)


class _Worker(NamedTuple):  # Hydra (1.3) imports plugins in a way in which there can be no dataclass
    """A process that runs one job, and the connection that its result comes from."""

    process: BaseProcess
    connection: Connection
    number: int  # of its job


class ParallelLauncher(Launcher):
    """Runs jobs in processes that are forked from this one.

    A signal that asks for an end is handed on to all of them, and they are waited for: each waits for the checkpoint of
    its job. However this process ends, the kernel ends them.

    Args:
        n_jobs: at a time; -1: one on each core, -2: one less, and so on.
    """

    def __init__(self, n_jobs: int) -> None:
        self.num_jobs = n_jobs if n_jobs > 0 else max(1, len(os.sched_getaffinity(0)) + 1 + n_jobs)
        self.workers: list[_Worker] = []

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Remember what a job is."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Return the results of jobs, in their order.

        Raises:
            RunFailed: a process of a job was lost.
            SystemExit: a job cannot be run, for a reason that was printed.
        """
        setup_globals()
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        own_task("train")  # once, and not by each process
        waiting = deque(enumerate(job_overrides, initial_job_idx))
        results: dict[int, JobReturn] = {}
        try:
            while waiting or self.workers:
                while waiting and len(self.workers) < self.num_jobs:
                    self._start(*waiting.popleft())
                ready = wait([worker.connection for worker in self.workers])
                for worker in [candidate for candidate in self.workers if candidate.connection in ready]:
                    results[worker.number] = _result(worker)
                    self.workers.remove(worker)
        except BaseException as error:
            self._hand_on(error)
            raise
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.join()
            self.workers.clear()
        return [results[number] for number in sorted(results)]

    def _start(self, number: int, overrides: Sequence[str]) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        job = partial(self._run, number, overrides)
        process = context.Process(target=_serve, args=(os.getpid(), theirs, job))
        # until the process has handlers of its own, and this one knows of it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            process.start()
            self.workers.append(_Worker(process, ours, number))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # the last copy of this end then is that of the process, whose end can be noticed
        theirs.close()

    def _run(self, number: int, overrides: Sequence[str]) -> JobReturn:
        """Run a job as Hydra's own launcher does."""
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return run_job(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )

    def _hand_on(self, error: BaseException) -> None:
        """Have all processes end as this one does, and wait for them."""
        number = signal.SIGTERM
        if isinstance(error, KeyboardInterrupt):
            number = signal.SIGINT
        elif isinstance(error, Terminated):
            number = error.signal
        for worker in self.workers:
            worker.connection.close()  # nobody waits for a result any more
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid or 0, number)
        for worker in self.workers:
            worker.process.join()


def _result(worker: _Worker) -> JobReturn:
    try:
        result = worker.connection.recv()
    except EOFError:
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise RunFailed(
            f"a process of the sweep was lost: {how}. The kernel does this when memory runs out: lower "
            "hydra.launcher.n_jobs. The same command, with its sweep.name, resumes the jobs"
        ) from None
    worker.process.join()
    if isinstance(result, JobReturn):
        return result
    raise SystemExit(result)


def _serve(parent: int, connection: Connection, job: Callable[[], JobReturn]) -> None:
    """Run a job, and send its result, or the code that it exits with."""
    die_with_parent(parent)

    def end(number: int, _: object) -> None:
        for signal_number in not_ignored(HANDLED):
            signal.signal(signal_number, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number, lambda: "")

    for number in not_ignored(HANDLED):
        signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    result: Any = None
    try:
        result = job()
    except SystemExit as left:
        result = left.code
    except KeyboardInterrupt:
        result = 128 + signal.SIGINT
    with contextlib.suppress(BrokenPipeError):
        connection.send(result)
