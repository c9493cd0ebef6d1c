"""A multirun job is a fresh process: nothing leaks from one job to the next."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def run_child(module: str, overrides: Sequence[str]) -> None:
    """Run one job as a plain single run of ``module`` with its own overrides.

    Raises:
        RuntimeError: the job failed; its own output says why.
    """
    done = subprocess.run([sys.executable, "-m", module, *overrides])
    if done.returncode:
        raise RuntimeError(f"the job {' '.join(overrides)!r} ended with exit code {done.returncode}")
