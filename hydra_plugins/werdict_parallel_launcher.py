"""Several jobs of a sweep at a time on this machine, which all end with the sweep."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from asr.commands.app import own_task
from asr.processes import ENDING, Terminated, die_with_parent, not_ignored
from werdict.errors import RunFailed

HANDLED = (signal.SIGINT, *ENDING)


class ParallelLauncher(Launcher):
    """Runs each job in a process that is forked from this one.

    A signal that asks for an end is handed on to all of them, and they are waited for: each waits for the checkpoint of
    its job. However this process ends, the kernel ends them.

    Args:
        n_jobs: at a time; -1: one on each core, -2: one less, and so on.
    """

    def __init__(self, n_jobs: int) -> None:
        self.num_jobs = n_jobs if n_jobs > 0 else max(1, len(os.sched_getaffinity(0)) + 1 + n_jobs)
        # of the jobs at work, by the connection that the result comes from
        self.processes: dict[Connection, BaseProcess] = {}

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
            while waiting or self.processes:
                while waiting and len(self.processes) < self.num_jobs:
                    self._start(*waiting.popleft())
                for connection in wait([*self.processes]):
                    assert isinstance(connection, Connection)
                    number, result = _received(connection, self.processes.pop(connection))
                    results[number] = result
        except BaseException as error:
            ending = signal.SIGINT if isinstance(error, KeyboardInterrupt) else getattr(error, "signal", signal.SIGTERM)
            for connection, process in self.processes.items():
                connection.close()  # nobody waits for a result any more
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid or 0, ending)
            for process in self.processes.values():
                process.join()
            raise
        finally:
            for process in self.processes.values():
                process.kill()
                process.join()
            self.processes.clear()
        return [results[number] for number in sorted(results)]

    def _start(self, number: int, overrides: Sequence[str]) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=self._serve, args=(os.getpid(), theirs, number, overrides))
        # until the process has handlers of its own, and this one knows of it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            process.start()
            self.processes[ours] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # the last copy of this end then is that of the process, whose end can be noticed
        theirs.close()

    def _serve(self, parent: int, connection: Connection, number: int, overrides: Sequence[str]) -> None:
        """Run a job, and send its result, or the code that it exits with."""
        die_with_parent(parent)

        def end(ending: int, _: object) -> None:
            for signal_number in not_ignored(HANDLED):
                signal.signal(signal_number, signal.SIG_IGN)
            raise KeyboardInterrupt if ending == signal.SIGINT else Terminated(ending, lambda: "")

        for signal_number in not_ignored(HANDLED):
            signal.signal(signal_number, end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        result: Any = None
        try:
            result = self._run(number, overrides)
        except SystemExit as left:
            result = left.code
        except KeyboardInterrupt:
            result = 128 + signal.SIGINT
        with contextlib.suppress(BrokenPipeError):
            connection.send((number, result))

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


def _received(connection: Connection, process: BaseProcess) -> tuple[int, JobReturn]:
    """Return the number and the result of a job whose process has sent it, or has ended."""
    try:
        number, result = connection.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise RunFailed(
            f"a process of the sweep was lost: {how}. The kernel does this when memory runs out: lower "
            "hydra.launcher.n_jobs. The same command, with its sweep.name, resumes the jobs"
        ) from None
    process.join()
    if isinstance(result, JobReturn):
        return number, result
    raise SystemExit(result)
