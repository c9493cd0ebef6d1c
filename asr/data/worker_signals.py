"""Reader processes leave it to the training that they read for to obey signals."""

from __future__ import annotations

import os
import signal
import sys
import threading


def obey_parent_alone(worker: int) -> None:
    """Ignore SIGTERM and SIGUSR1 that do not come from the parent process; a ``worker_init_fn``.

    A scheduler that takes a machine away signals every process of a job. A reader that died of it would end the
    training with an error before its checkpoint is written.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_wait_for_parent, args=(os.getppid(),), daemon=True).start()


def _wait_for_parent(parent: int) -> None:
    # a handler is not told who sent a signal
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
