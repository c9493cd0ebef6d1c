"""Kill trainings at random moments, resume them, and compare the end with that of a training left alone.

    python scripts/soak.py [--kills 30] [--seed 1] [--minutes 20] [--cases alone,workers,ranks] [--markdown]

Every case is trained once without interruption and once with kills (SIGKILL to all its processes), resumed each time by
``asr-train resume=RUN``. Weights, optimizer, schedule and counts in the last checkpoint must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from bench.output import listed, table_text
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from asr.processes import die_with_parent

INTERVAL = 4  # updates between validations, each with a checkpoint
PHASES = ("start", "training", "validation", "checkpoint")
CASES = {
    "alone": ("data.workers.num_workers=0", "trainer.accumulate_grad_batches=2"),
    "workers": ("data.workers.num_workers=2",),
    "ranks": ("data.workers.num_workers=1", "trainer.devices=2"),
}
SMALL = (
    "data.prepare.num_train=60",
    "data.prepare.num_dev=8",
    "data.prepare.num_test=8",
    "data.batch.max_duration_s=10",
    "tokenizer=char",
    "encoder.num_layers=1",
    "encoder.d_model=48",
    "encoder.d_feedforward=64",
    "encoder.subsampling_channels=8",
    f"trainer.val_check_interval={INTERVAL}",
    "torch_threads=1",
    "logger=csv",
)
COMPARED = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "epoch", "global_step")

console = Console(stderr=True)


@dataclass
class Outcome:
    """What happened to one case."""

    case: str
    kills: Counter[str] = field(default_factory=Counter)
    num_updates: int = 0
    equal: bool = False


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start ``asr-train`` in a session of its own, its output appended to log.txt; it ends with this process."""
    ending = functools.partial(die_with_parent, os.getpid())
    with (folder / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", "asr.commands", "train", *words]
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True, preexec_fn=ending)


def finish(folder: Path, *words: str) -> None:
    """Run a training to its end.

    Raises:
        RuntimeError: it failed.
    """
    process = start(folder, *words)
    if process.wait():
        raise RuntimeError(f"a training failed; the end of {folder / 'log.txt'}:\n{log_end(folder)}")


def log_end(folder: Path) -> str:
    """Return the last lines of the log."""
    return "\n".join((folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def num_logged(run_dir: Path) -> int:
    """Return how many updates have been logged."""
    metrics = run_dir / "metrics.csv"
    return metrics.read_text(encoding="utf-8").count(",train/loss,") if metrics.exists() else 0


def checkpoint_marks(run_dir: Path) -> frozenset[tuple[str, int]]:
    """Return names and times of all files beside the checkpoints, temporary ones included."""
    marks = set()
    for path in (run_dir / "checkpoints").glob("*"):
        try:
            marks.add((path.name, path.lstat().st_mtime_ns))
        except FileNotFoundError:
            continue  # renamed meanwhile
    return frozenset(marks)


def wait_for(phase: str, run_dir: Path, process: subprocess.Popen[bytes], draw: random.Random) -> bool:
    """Wait for a moment of a phase; return False if the training ended before."""
    if phase == "start":
        return ended_within(process, draw.uniform(0.1, 8.0)) is None
    before, marks = num_logged(run_dir), checkpoint_marks(run_dir)
    # after a kill the log is cut back to the checkpoint first
    ahead = before // INTERVAL * INTERVAL + (INTERVAL if phase == "validation" else draw.randint(1, INTERVAL - 1))
    seen_shorter = before % INTERVAL == 0
    while process.poll() is None:
        now = num_logged(run_dir)
        seen_shorter = seen_shorter or now < before
        if phase == "checkpoint" and checkpoint_marks(run_dir) != marks:
            return ended_within(process, draw.uniform(0, 0.02)) is None
        if phase != "checkpoint" and seen_shorter and now >= ahead:
            return ended_within(process, draw.uniform(0, 0.1)) is None
        time.sleep(0.002)
    return False


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code if the process ends within this time."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def kill_and_resume(folder: Path, case: str, words: tuple[str, ...], num_kills: int, draw: random.Random) -> Counter:
    """Train with kills; return how many fell into each phase."""
    kills: Counter[str] = Counter()
    process = start(folder, *words, "run_dir=killed")
    while kills.total() < num_kills:
        phase = draw.choice(PHASES)
        if not wait_for(phase, folder / "killed", process, draw):
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills[phase] += 1
        begun = (folder / "killed" / "overrides.yaml").exists()
        process = start(folder, "resume=killed") if begun else start(folder, *words, f"run_dir={fresh(folder)}")
    if process.wait():
        raise RuntimeError(f"{case}: a resumed training failed; the end of {folder / 'log.txt'}:\n{log_end(folder)}")
    return kills


def fresh(folder: Path) -> str:
    """Return the run's name, free again: a kill before anything was written leaves at most an empty folder."""
    run_dir = folder / "killed"
    if run_dir.exists():
        for path in run_dir.iterdir():
            path.unlink()
    return run_dir.name


def equal(first: Any, second: Any) -> bool:
    """Return whether two parts of checkpoints agree bit for bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(equal(a, b) for a, b in zip(first, second, strict=True))
    return bool(first == second)


def soak(case: str, num_kills: int, folder: Path, data_dir: Path, seed: int) -> Outcome:
    """Train a case with and without kills, and compare."""
    outcome = Outcome(case, num_updates=INTERVAL * (num_kills + 2))
    words = (*SMALL, *CASES[case], f"trainer.max_steps={outcome.num_updates}", f"data.dir={data_dir}")
    folder.mkdir()
    finish(folder, *words, "run_dir=whole")
    outcome.kills = kill_and_resume(folder, case, words, num_kills, random.Random(f"{seed} {case}"))
    ends = [torch.load(folder / name / "checkpoints" / "last.ckpt", weights_only=True) for name in ("whole", "killed")]
    outcome.equal = all(equal(ends[0][key], ends[1][key]) for key in COMPARED)
    return outcome


def shown(outcomes: list[Outcome], markdown: bool) -> None:
    """Print the table on standard output."""
    header = ("case", "options", "updates", *(f"kills: {phase}" for phase in PHASES), "weights, optimizer, schedule")
    table = Table(*header)
    for outcome in outcomes:
        kills = (str(outcome.kills[phase]) for phase in PHASES)
        end = "equal bit for bit" if outcome.equal else "DIFFERENT"
        table.add_row(outcome.case, " ".join(CASES[outcome.case]), str(outcome.num_updates), *kills, end)
    print(table_text(table, markdown))


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="over all cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20.0, help="no further case begins after this time")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--data-dir", type=Path, help="where the small data is prepared; default: a temporary folder")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if case in listed(parser, options.cases, list(CASES))]
    per_case = -(-options.kills // len(cases))
    outcomes: list[Outcome] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, Progress(console=console, transient=True) as progress:
        data_dir = (options.data_dir or Path(folder) / "data").resolve()
        for case in progress.track(cases, description="killing and resuming"):
            if time.monotonic() - begin < 60 * options.minutes:
                outcomes.append(soak(case, per_case, Path(folder) / case, data_dir, options.seed))
    shown(outcomes, options.markdown)
    total = sum(outcome.kills.total() for outcome in outcomes)
    good = all(outcome.equal for outcome in outcomes) and len(outcomes) == len(cases)
    minutes = (time.monotonic() - begin) / 60
    print(
        f"{'ok' if good else 'FAILED'}: {total} kills in {len(outcomes)} of {len(cases)} cases, {minutes:.1f} minutes"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
