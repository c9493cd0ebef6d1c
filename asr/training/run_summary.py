"""What ``report/summary.json`` says about a run beside its error rates: time, memory, versions, git commit."""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from asr.safe_io import write_whole

PACKAGES = ("torch", "lightning", "lhotse", "hydra-core", "sentencepiece", "jiwer", "wandb")


class Stopwatch:
    """Wall-clock and CPU seconds since its construction, of this process and its finished children."""

    def __init__(self) -> None:
        self.start_wall, self.start_cpu = time.monotonic(), self._cpu()

    @staticmethod
    def _cpu() -> float:
        usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def read(self) -> dict[str, float]:
        """Return ``seconds`` and ``cpu_seconds``."""
        return {
            "seconds": round(time.monotonic() - self.start_wall, 1),
            "cpu_seconds": round(self._cpu() - self.start_cpu, 1),
        }


def peak_memory_mb() -> dict[str, float]:
    """Return the largest resident memory so far, and on a GPU the largest allocation."""
    memory = {"peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}  # KiB on Linux
    if torch.cuda.is_available():
        memory["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return memory


def provenance() -> dict[str, Any]:
    """Return what produced a result: versions, machine, command line, git commit."""
    return {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "machine": platform.processor() or platform.machine(),
        "command": sys.argv,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Return the commit of this source tree, with ``-dirty`` if files were changed; None outside a checkout."""
    here = Path(__file__).resolve().parent
    # --exclude=*: the commit, even if it has a tag
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write ``report/summary.json`` of a run's folder."""
    path = folder / "report" / "summary.json"
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(summary, indent=1, ensure_ascii=False))
