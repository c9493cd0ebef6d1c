"""The folder of a run: made once everything is known to work, never shared, never overwritten."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from asr.safe_io import check_inside, named_path, open_inside, refuse_links_outside, write_whole

MAX_THREADS = 1024  # torch starts them all
PACKAGES = ("torch", "lightning", "lhotse", "hydra-core", "sentencepiece", "jiwer", "wandb")
FILES = (".lock", "config.yaml", "overrides.yaml", "metrics.csv", "wandb_id")
FOLDERS = ("checkpoints", "decode", "report", "wandb")
# wandb leaves a link to its log in the user's cache, and never opens it again
WANDB_LOGS = "wandb/*/logs/debug-core.log"


def check_run_folder(folder: Path) -> None:
    """Refuse the folder of a run that cannot be written to without changing files elsewhere.

    To be called before anything is written to a folder that exists, which may come from somebody else.

    Raises:
        ValueError: a link leads out of it, or what should be a file or a folder is something else.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give the folder of a run, as below runs/")
    refuse_links_outside(folder, except_for=WANDB_LOGS)
    for names, is_right, kind in ((FILES, Path.is_file, "regular file"), (FOLDERS, Path.is_dir, "folder")):
        for path in (folder / name for name in names):
            if os.path.lexists(path) and not is_right(path):
                raise ValueError(f"{path} is not a {kind}, as it is in the folder of a run; remove it")
    for path in (folder / "checkpoints").glob("*"):
        # a link may lead to nothing where a kill came between two steps of writing
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is not a regular file, as checkpoints are; remove it")


def create_run_folder(parent: Path, within: Path | None = None) -> Path:
    """Create and return a new folder named by date and time below ``parent``.

    Args:
        parent: made if needed.
        within: that ``parent`` must not be led out of by a link.

    Raises:
        ValueError: it is.
    """
    if within is not None:
        check_inside(parent, within)
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in range(1, 100):
        folder = parent.resolve() / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise RuntimeError(f"could not create a new folder below {parent}")


def point_latest(folder: Path, link: Path) -> None:
    """Let the link ``runs/latest`` lead to a new run; whatever else has that name is left alone."""
    if link.exists() and not link.is_symlink():
        return
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(folder, link.parent.resolve()))
    fresh.replace(link)


def usable_folder(given: object, key: str) -> Path:
    """Return the absolute folder that ``key`` names, without making it.

    Raises:
        ValueError: it is no path, lies below a file, or may not be made.
    """
    if not isinstance(given, str | int | Path) or isinstance(given, bool) or not str(given).strip():
        raise ValueError(f"{key} must name a folder, given {given!r}")
    folder = named_path(given).resolve()
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise ValueError(f"{key}: {str(folder)!r} cannot be made: {str(nearest)!r} is no folder; name another")
    # prepared data may be read where nothing may be written
    if nearest != folder and not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{key}: {str(folder)!r} cannot be made: {str(nearest)!r} is not writable; name another")
    return folder


def free_folder(given: object, key: str) -> Path:
    """Return the absolute folder that ``key`` names, without making it; refuse one that holds something."""
    folder = usable_folder(given, key)
    if folder.exists() and any(folder.iterdir()):
        if (folder / ".lock").is_file():
            # what is at work there must not be removed
            with hold(folder):
                pass
        raise ValueError(f"{key}: {folder} exists and is not empty; name another folder, or remove it")
    return folder


def claim_run_folder(given: object, key: str = "run_dir") -> Path:
    """Create the folder that the user named by ``key``; refuse one that holds something."""
    folder = free_folder(given, key)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Let one training at a time write to a run's folder; the hold ends with its processes.

    Raises:
        ValueError: another process holds it, or writing there would change files elsewhere.
    """
    check_run_folder(folder)
    with open_inside(folder / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is training in {folder}; wait for its end, or end it") from None
        yield


def keep_former(folder: Path, names: Sequence[str]) -> None:
    """Rename what a run's folder has under these names, before it is written anew."""
    for name in names:
        if os.path.lexists(folder / name):
            (folder / name).rename(former_path(folder / name))


def former_path(path: Path) -> Path:
    """Return a free name beside a file for what it has held so far."""
    names = (path.with_name(f"{path.stem}.former{attempt}{path.suffix}") for attempt in itertools.count(1))
    return next(former for former in names if not os.path.lexists(former))


class Stopwatch:
    """Wall-clock and CPU seconds since it was made, of this process and of its finished children."""

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
    import torch  # here, because commands that only need folders should not wait for it

    memory = {"peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}
    if torch.cuda.is_available():
        memory["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return memory


def provenance() -> dict[str, Any]:
    """Return what a result was made with: versions, machine, git commit."""
    return {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "machine": platform.processor() or platform.machine(),
        "command": sys.argv,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Commit of this source tree, marked ``-dirty`` where files were changed; None outside a checkout."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def write_summary(folder: Path, summary: dict[str, Any]) -> Path:
    """Write ``report/summary.json`` and return its path."""
    path = folder / "report" / "summary.json"
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(summary, indent=1, ensure_ascii=False))
    return path


def num_threads(asked: int | None, num_workers: int, num_processes: int = 1) -> int:
    """Return the threads that torch should use: what was asked for, else the cores that no loader worker needs.

    Args:
        asked: number of threads of this process, or None.
        num_workers: loader workers of each process.
        num_processes: that share the machine.

    Raises:
        ValueError: what was asked for is no number of threads.
    """
    if asked is not None:
        if not isinstance(asked, int) or isinstance(asked, bool) or not 1 <= asked <= MAX_THREADS:
            raise ValueError(
                f"torch_threads must be a whole number of at least 1 and at most {MAX_THREADS}, or null for the cores "
                f"left, given {asked!r}"
            )
        return asked
    return max(1, len(os.sched_getaffinity(0)) // num_processes - num_workers)
