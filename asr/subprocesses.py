"""Child processes that must not outlive their parent; used by launchers, sweeps and the workers that read data."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends (Linux).

    Args:
        parent: process id of the parent. If the parent is already dead, this process ends at once: another process
            has adopted it, and the kernel would wait for the end of that one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
