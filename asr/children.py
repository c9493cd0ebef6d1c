"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when the thread that started it ends, killed or not (Linux).

    Args:
        parent: number of the process that started this one. Where it is dead already, this one ends at once: it
            has been adopted by another then, whose end it would wait for in vain.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
