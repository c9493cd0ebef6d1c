"""Work on parts of a corpus by several processes, with the same results for any number of them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import torch

from asr.data.threads import one_thread
from asr.error_text import text_of
from asr.errors import RunFailed
from asr.signals import ENDING
from asr.subprocesses import die_with_parent

MAX_JOBS = 256
NUM_AHEAD = 3  # tasks of each process that wait, or whose results do
OBEYED = (signal.SIGINT, *ENDING)

Task = TypeVar("Task")
Result = TypeVar("Result")


def num_processes(asked: int | None) -> int:
    """Return how many processes prepare data: as asked for, or one for each core that this process may use.

    Raises:
        ValueError: ``asked`` is no number of processes.
    """
    if asked is None:
        return min(len(os.sched_getaffinity(0)), MAX_JOBS)
    if not isinstance(asked, int) or isinstance(asked, bool) or not 1 <= asked <= MAX_JOBS:
        raise ValueError(
            f"data.num_jobs must be a whole number of at least 1 and at most {MAX_JOBS}, or null for the number of "
            f"cores, given {asked!r}"
        )
    return asked


def run_jobs(work: Callable[[Task], Result], tasks: Iterable[Task], num_jobs: int) -> Iterator[Result]:
    """Yield the result of every task, in their order; torch has one thread in each process.

    Args:
        work: task → result; an error of it is raised here.
        tasks: read one by one, as processes become free.
        num_jobs: processes; 1: this one.

    Raises:
        RunFailed: a process was lost.
    """
    if num_jobs > 1:
        with_jobs = _Jobs(work, num_jobs)
        try:
            yield from with_jobs.run(tasks)
        finally:
            with_jobs.end()
        return
    for task in tasks:
        with one_thread():
            result = work(task)
        yield result


@dataclass
class _Job:
    """A process, and the number of the task that it works on."""

    process: Any
    connection: Connection
    number: int | None = None


class _Jobs(Generic[Task, Result]):
    """Processes that are started when there is work for them; they end with this one, whatever ends it."""

    def __init__(self, work: Callable[[Task], Result], num_jobs: int) -> None:
        self.work, self.num_jobs = work, num_jobs
        self.jobs: list[_Job] = []

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results in the order of the tasks."""
        waiting, left = enumerate(tasks), True
        done: dict[int, Result] = {}
        num_yielded = num_given = 0
        while True:
            while left and num_given - num_yielded < NUM_AHEAD * self.num_jobs and (job := self._idle()):
                number, task = next(waiting, (None, None))
                left = number is not None
                if left:
                    self._give(job, number, task)
                    num_given += 1
            if num_yielded == num_given:
                return
            if num_yielded not in done:
                done |= dict(self._received())
            while num_yielded in done:
                yield done.pop(num_yielded)
                num_yielded += 1

    def end(self) -> None:
        """Kill the processes: what they have not finished is of no use."""
        for job in self.jobs:
            job.process.kill()
        for job in self.jobs:
            job.process.join()
            job.connection.close()

    def _idle(self) -> _Job | None:
        job = next((job for job in self.jobs if job.number is None), None)
        if job is None and len(self.jobs) < self.num_jobs:
            job = self._started()
            self.jobs.append(job)
        return job

    def _started(self) -> _Job:
        # fork, as the loader's workers: a spawned process would import torch and lhotse again
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(os.getpid(), ours, theirs, self.work), daemon=True)
        # a signal before the process ignores it would end it with a traceback
        before = signal.pthread_sigmask(signal.SIG_BLOCK, OBEYED)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # the last copy of this end then is that of the process, whose end can be noticed
        theirs.close()
        return _Job(process, ours)

    def _give(self, job: _Job, number: Any, task: Any) -> None:
        job.number = number
        try:
            job.connection.send(task)
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost(job) from None

    def _received(self) -> Iterator[tuple[int, Result]]:
        busy = {job.connection: job for job in self.jobs if job.number is not None}
        for connection in wait(list(busy)):
            job = busy[connection]  # type: ignore[index]
            try:
                succeeded, result = job.connection.recv()
            except (EOFError, ConnectionResetError):
                raise self._lost(job) from None
            if not succeeded:
                raise result
            number, job.number = job.number, None
            assert number is not None
            yield number, result

    def _lost(self, job: _Job) -> RunFailed:
        job.process.join()
        code = job.process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return RunFailed(
            f"a process that prepares data was lost: {how}. The kernel does this when memory runs out: lower "
            f"data.num_jobs ({self.num_jobs} now). The same command continues with what is prepared already"
        )


def _serve(parent: int, theirs: Connection, ours: Connection, work: Callable[[Any], Any]) -> None:
    """Work on tasks until there are no more; only the parent ends this process."""
    die_with_parent(parent)
    for number in OBEYED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OBEYED)
    theirs.close()
    torch.set_num_threads(1)
    with suppress(EOFError, ConnectionError):
        while True:
            task = ours.recv()
            try:
                answer = True, work(task)
            except BaseException as error:
                answer = False, _portable(error)
            ours.send(answer)
    os._exit(0)


def _portable(error: BaseException) -> BaseException:
    """Return the error, or one with its text if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {text_of(error)}")
    return error
