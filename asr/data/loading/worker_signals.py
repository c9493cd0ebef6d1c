"""Reader processes leave signals to the run that they read for, and end when they can no longer send it batches."""

from __future__ import annotations

import multiprocessing.queues
import os
import signal
import sys
import threading
from types import TracebackType

from asr.children import die_with_parent
from asr.console import printable
from asr.error_text import first_line

CANNOT_SEND = 3  # exit code


def obey_parent_alone(parent: int, worker: int) -> None:
    """Ignore signals that ask for an end, except a SIGTERM that comes from the parent process, and end with it.

    A scheduler that takes a machine away signals every process of a job. A reader that died of it would end the
    training with an error before its checkpoint is written. A reader that outlives a killed training would keep its
    folder locked: PyTorch's do for some seconds, and for ever when they were being started.

    Args:
        parent: number of the process that reads through this one, which has forked it.
        worker: number of the reader, as a ``worker_init_fn`` is given it.
    """
    die_with_parent(parent)
    # a Ctrl-C reaches the whole group, and the parent ends this one
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    # torch sends a batch in threads, whose errors are printed and forgotten, and the parent would wait for ever
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_end)  # type: ignore[attr-defined]
    threading.excepthook = lambda failed: _end_unless_connection_lost(failed.exc_type, failed.exc_value, None)
    sys.excepthook = _end_unless_connection_lost  # multiprocessing's thread that lends tensors calls it
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_wait_for_parent, args=(parent,), daemon=True).start()


def _end_unless_connection_lost(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    # a parent that is ending no longer fetches tensors
    if not issubclass(kind, ConnectionError | EOFError):
        _end(error or kind())


def _end(error: BaseException, batch: object = None) -> None:
    """End this process, which the parent notices."""
    os.write(2, f"a worker that reads data cannot send a batch: {printable(first_line(error))}\n".encode())
    os._exit(CANNOT_SEND)


def _wait_for_parent(parent: int) -> None:
    # a handler is not told who sent a signal
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
