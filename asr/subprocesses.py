"""The processes of a run: which one is the first, and that no child outlives its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
# set by torchrun and by our own launcher, and by SLURM
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "LOCAL_RANK")

NUM_RANKS = "WORLD_SIZE"  # set by torchrun and by our own launcher
RUN_DIR_VARIABLE = "WERDICT_RUN_DIR"  # how the launcher of several processes tells them the run's folder
LAUNCHER_VARIABLE = "WERDICT_LAUNCHER"  # process id of the launcher that has set RUN_DIR_VARIABLE


def is_first_process() -> bool:
    """Return whether this is the process that writes and prints, according to the environment."""
    ranks = [os.environ[name] for name in RANK_VARIABLES if name in os.environ]
    return not ranks or ranks[0] == "0"


def is_one_of_several() -> bool:
    """Return whether there are other processes of this run, according to the environment."""
    ranks = [os.environ[name] for name in RANK_VARIABLES if name in os.environ]
    return bool(ranks) and (not is_first_process() or os.environ.get(NUM_RANKS, "1") not in ("0", "1"))


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
