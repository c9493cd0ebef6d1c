"""Runs of asr-train that parts of the report start, and what they leave."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asr.processes import die_with_parent
from asr.runs.files import read_metrics

SMALL = (
    "data.batch.max_duration_s=10",
    "tokenizer=char",
    "encoder.num_layers=1",
    "encoder.subsampling_channels=8",
    "torch_threads=1",
    "logger=csv",
)
# six updates of a model of a few thousand weights
TINY = (
    *SMALL,
    "data.prepare.num_train=24",
    "data.prepare.num_dev=4",
    "data.prepare.num_test=4",
    "data.workers.num_workers=0",
    "encoder.d_model=16",
    "encoder.num_heads=2",
    "encoder.d_feedforward=16",
)
SAME = "equal bit for bit"
COMPARED = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "epoch", "global_step")  # of checkpoints


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start ``asr-train`` in a session of its own, its output appended to log.txt; it ends with this process."""
    ending = functools.partial(die_with_parent, os.getpid())
    with (folder / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", "asr.commands", "train", *words]
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True, preexec_fn=ending)


def log_end(folder: Path) -> str:
    """Return the last lines of the log."""
    return "\n".join((folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def num_logged(run_dir: Path) -> int:
    """Return how many updates have been logged."""
    metrics = run_dir / "metrics.csv"
    return metrics.read_text(encoding="utf-8").count(",train/loss,") if metrics.exists() else 0


class RunEnded(RuntimeError):
    """A run ended with another exit code than 0; the message holds its last lines."""


def train(folder: Path, *words: str, launcher: Sequence[str] = ()) -> float:
    """Run asr-train, its output appended to log.txt; return its seconds.

    Args:
        folder: to run it in.
        words: its command line.
        launcher: command that starts it, such as torchrun; none: Python.

    Raises:
        RunEnded: it failed.
    """
    begin = time.monotonic()
    with (folder / "log.txt").open("ab") as log:
        command = [*(launcher or (sys.executable,)), "-m", "asr.commands.train", *words, "logger=csv"]
        code = subprocess.run(command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL).returncode
    if code:
        raise RunEnded(f"exit code {code}: {log_end(folder)}")
    return time.monotonic() - begin


def last_checkpoint(run_dir: Path) -> dict[str, Any]:
    """Return what the last checkpoint of a run holds, on the CPU."""
    state: dict[str, Any] = torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True, map_location="cpu")
    return state


def equal(first: Any, second: Any) -> bool:
    """Return whether two parts of checkpoints agree bit for bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(equal(a, b) for a, b in zip(first, second, strict=True))
    return bool(first == second)


def largest_difference(first: Mapping[Any, torch.Tensor], second: Mapping[Any, torch.Tensor]) -> float:
    """Return the largest difference, relative to the largest magnitude of the same tensor."""
    return max(
        float((value - second[key]).abs().max() / value.abs().max().clamp(min=1e-12)) for key, value in first.items()
    )


@dataclass(frozen=True)
class Ended:
    """What a finished run says about itself.

    Attributes:
        wer: of its test set, a fraction.
        minutes: of its updates and validations.
        audio_s_per_s: seconds of audio in an update for each second of it.
        updates_per_s: without validations.
        optimizer_share: of the time of updates; None: unknown.
    """

    wer: float
    minutes: float
    audio_s_per_s: float
    updates_per_s: float
    optimizer_share: float | None


def ended(run_dir: Path) -> Ended:
    """Read ``report/summary.json`` and ``metrics.csv`` of a run."""
    summary: dict[str, Any] = json.loads((run_dir / "report" / "summary.json").read_text(encoding="utf-8"))
    points = read_metrics(run_dir / "metrics.csv", lambda name: name == "train/audio_s")
    audio = points["train/audio_s"][1] if points else []
    cost, (test, *_) = summary["cost"], summary["test"].values()
    per_update = cost["seconds_per_update"] or float("nan")
    return Ended(
        wer=float(test["wer"]),
        minutes=float(cost["training_seconds"]) / 60,
        audio_s_per_s=statistics.fmean(audio) / per_update if audio else float("nan"),
        updates_per_s=1 / per_update,
        optimizer_share=cost["optimizer_share"],
    )
