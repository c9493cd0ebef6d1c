"""Kill trainings at random moments, resume them, and compare the end with that of a training left alone.

    python scripts/bench soak [--kills 30] [--seed 1] [--cases alone,workers,ranks] [--markdown]

Every case is trained once without interruption and once with kills (SIGKILL to all its processes), resumed each time by
``asr-train resume=RUN``. Weights, optimizer, schedule and counts in the last checkpoint must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Row, Setting
from bench.output import listed, positive
from bench.runs import COMPARED, SAME, SMALL, equal, last_checkpoint, log_end, num_logged, start, train

INTERVAL = 4  # updates between validations, each with a checkpoint
PHASES = ("start", "training", "validation", "checkpoint")
CASES = {
    "alone": ("data.workers.num_workers=0", "trainer.accumulate_grad_batches=2"),
    "workers": ("data.workers.num_workers=2",),
    "ranks": ("data.workers.num_workers=1", "trainer.devices=2"),
}
WORDS = (
    *SMALL,
    "data.prepare.num_train=60",
    "data.prepare.num_dev=8",
    "data.prepare.num_test=8",
    "encoder.d_model=48",
    "encoder.d_feedforward=64",
    f"trainer.val_check_interval={INTERVAL}",
)


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


def soak(case: str, num_kills: int, folder: Path, data_dir: Path, seed: int) -> tuple[int, Counter[str], bool]:
    """Train a case with and without kills; return updates, kills by phase, and whether both ended alike."""
    num_updates = INTERVAL * (num_kills + 2)
    words = (*WORDS, *CASES[case], f"trainer.max_steps={num_updates}", f"data.dir={data_dir}")
    folder.mkdir()
    train(folder, *words, "run_dir=whole")
    kills = kill_and_resume(folder, case, words, num_kills, random.Random(f"{seed} {case}"))
    whole, killed = (last_checkpoint(folder / name) for name in ("whole", "killed"))
    return num_updates, kills, all(equal(whole[key], killed[key]) for key in COMPARED)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is killed, and how often."""
    parser.add_argument("--kills", type=positive, default=30, help="over all cases (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=lambda names: listed(parser, names, list(CASES)), default=",".join(CASES))


def rows(setting: Setting, _: str) -> Iterator[Row]:
    """Yield a row for each case, and the number of kills."""
    options, total = setting.options, 0
    data_dir, per_case = setting.work / "data", -(-options.kills // len(options.cases))
    for case in [case for case in CASES if case in options.cases]:
        num_updates, kills, is_same = soak(case, per_case, setting.work / case, data_dir, options.seed)
        total += kills.total()
        cells = {"options": " ".join(CASES[case]), "updates": str(num_updates)}
        cells |= {f"kills: {phase}": str(kills[phase]) for phase in PHASES}
        yield Row(case, cells | {"weights, optimizer, schedule": SAME if is_same else "DIFFERENT"}, SAME, is_same)
    yield Row("kills", str(total))
