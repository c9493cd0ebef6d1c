"""Signals of worker processes: only the parent ends them, and they end when they cannot send it batches."""

from __future__ import annotations

import multiprocessing.context
import multiprocessing.queues
import os
import signal
import sys
import threading
from types import TracebackType

from asr.console import printable
from asr.error_text import first_line
from asr.signals import ENDING
from asr.subprocesses import die_with_parent

CANNOT_SEND = 3  # exit code


def ignore_signals_except_parents(parent: int, worker: int) -> None:
    """Ignore signals except a SIGTERM of the parent process, and end together with it.

    A scheduler that preempts a job signals all of its processes. A worker that ended then would end the run with an
    error before its checkpoint is written. A worker that outlived a killed run would keep the run's folder locked:
    PyTorch's do for some seconds, and forever if they were just being started.

    Args:
        parent: process id of the parent, which has forked this process.
        worker: number of the worker; DataLoader passes it to a ``worker_init_fn``.
    """
    die_with_parent(parent)
    # Ctrl-C signals the whole process group; the parent ends its workers after its own clean-up
    for number in {signal.SIGINT, *ENDING} - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = lambda failed: _end_unless_connection_lost(failed.exc_type, failed.exc_value, None)
    sys.excepthook = _end_unless_connection_lost  # called by multiprocessing's thread that shares tensors
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_wait_for_parent, args=(parent,), daemon=True).start()


class WorkerContext(multiprocessing.context.ForkContext):
    """Makes worker processes by fork: a spawned one would import torch and lhotse again, in every epoch."""

    def Queue(self, maxsize: int = 0) -> multiprocessing.queues.Queue:
        """Return a queue through which a worker sends its batches, or ends."""
        return _EndingQueue(maxsize, ctx=self.get_context())


class _EndingQueue(multiprocessing.queues.Queue):
    """Ends the process whose thread cannot send: its error would only be printed, and the parent would wait forever."""

    @staticmethod
    def _on_queue_feeder_error(error: BaseException, batch: object) -> None:
        _end(error)


def _end_unless_connection_lost(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    # a parent that is ending no longer receives tensors
    if not issubclass(kind, ConnectionError | EOFError):
        _end(error or kind())


def _end(error: BaseException) -> None:
    """End this process; the parent notices."""
    os.write(2, f"a worker that reads data cannot send a batch: {printable(first_line(error))}\n".encode())
    os._exit(CANNOT_SEND)


def _wait_for_parent(parent: int) -> None:
    # a handler of Python does not get the sender of a signal
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
