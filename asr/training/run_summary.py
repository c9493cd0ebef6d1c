"""What ``report/summary.json`` says about a run beside its error rates: time, memory, versions, git commit."""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr.safe_io import write_whole
from asr.training.checkpoints.loading import LoadedCheckpoint

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
    # a run whose logger is not wandb does not need it installed; the first that Python finds is the one that it imports
    installed = {name: [found.version for found in distributions(name=name)] for name in PACKAGES}
    return {
        "python": platform.python_version(),
        "versions": {name: versions[0] for name, versions in installed.items() if versions},
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


def start_lines(
    recognizer: nn.Module, config: Mapping[str, Any], run_dir: Path, checkpoint: LoadedCheckpoint | None
) -> list[str]:
    """Return what is said when training starts: how large the model is, for how long, and from where.

    Args:
        recognizer: that is trained.
        config: of the run.
        run_dir: of the run.
        checkpoint: that the run continues from.
    """
    num_parameters = sum(p.numel() for p in recognizer.parameters())
    num_frozen = sum(p.numel() for p in recognizer.parameters() if not p.requires_grad)
    frozen = f", {num_frozen:,} of them frozen" if num_frozen else ""
    lines = [f"{num_parameters:,} parameters{frozen}, {config['trainer']['max_steps']} updates, run folder {run_dir}"]
    if checkpoint is not None:
        lines += [f"left out: {problem}" for problem in checkpoint.rejected]
        lines.append(f"resuming from update {checkpoint.update}: {checkpoint.path}")
    elif config["resume"] is not None:
        lines.append("the run has no checkpoint yet: it starts again")
    return lines
