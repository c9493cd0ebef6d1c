"""Reader processes leave it to the training that they read for to obey signals."""

from __future__ import annotations

import os
import signal
import sys
import threading

from asr.children import die_with_parent


def obey_parent_alone(parent: int, worker: int) -> None:
    """Ignore SIGTERM and SIGUSR1 that do not come from the parent process, and end with it.

    A scheduler that takes a machine away signals every process of a job. A reader that died of it would end the
    training with an error before its checkpoint is written. A reader that outlives a killed training would keep its
    folder locked: PyTorch's do for some seconds, and for ever when they were being started.

    Args:
        parent: number of the process that reads through this one, which has forked it.
        worker: number of the reader, as a ``worker_init_fn`` is given it.
    """
    die_with_parent(parent)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_wait_for_parent, args=(parent,), daemon=True).start()


def _wait_for_parent(parent: int) -> None:
    # a handler is not told who sent a signal
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
