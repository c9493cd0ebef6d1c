"""Work on parts of a corpus by several processes, with the same results for any number of them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from asr.processes import ENDING, die_with_parent
from werdict.errors import RunFailed, text_of

NUM_AHEAD = 3  # tasks of each process that wait, or whose results do
OBEYED = (signal.SIGINT, *ENDING)

Task = TypeVar("Task")
Result = TypeVar("Result")


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread of this process: products and filters of several add in another order."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def num_processes(num_jobs: int | None) -> int:
    """Return how many processes prepare data: ``num_jobs``, or one for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if num_jobs is None else num_jobs


def run_jobs(work: Callable[[Task], Result], tasks: Iterable[Task], num_jobs: int) -> Iterator[Result]:
    """Yield the result of every task, in their order; torch has one thread in each process.

    Args:
        work: task → result; an error of it is raised here.
        tasks: read one by one, as processes become free.
        num_jobs: processes, which end with this one, whatever ends it; 1: this one.

    Raises:
        RunFailed: a process was lost.
    """
    if num_jobs > 1:
        yield from _run_parallel(work, tasks, num_jobs)
        return
    for task in tasks:
        with one_thread():
            result = work(task)
        yield result


def _run_parallel(work: Callable[[Task], Result], tasks: Iterable[Task], num_jobs: int) -> Iterator[Result]:
    # fork: a spawned process would import torch and lhotse again, and could not be given a function of a function
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(num_jobs, context, initializer=_begin, initargs=(os.getpid(), work))
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            # the first submission forks: a signal before a process ignores it would end that with a traceback
            before = signal.pthread_sigmask(signal.SIG_BLOCK, OBEYED)
            try:
                waiting.append(pool.submit(_work, task))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if len(waiting) == NUM_AHEAD * num_jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise RunFailed(
            "a process that prepares data was lost. The kernel does this when memory runs out: lower data.num_jobs "
            f"({num_jobs} now). Run the same command again to continue"
        ) from error
    finally:
        # what they have not finished is of no use
        for process in [*(pool._processes or {}).values()]:
            process.kill()
        pool.shutdown(cancel_futures=True)


_working: Callable[[Any], Any]  # of a process that works


def _begin(parent: int, work: Callable[[Any], Any]) -> None:
    """Prepare a process for work: only its parent ends it."""
    global _working
    die_with_parent(parent)
    for number in OBEYED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OBEYED)
    torch.set_num_threads(1)
    _working = work


def _work(task: Any) -> Any:
    try:
        return _working(task)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            # the parent could not read it
            raise RuntimeError(f"{type(error).__name__}: {text_of(error)}") from None
        raise
