"""The folder of a run: created once everything is known to work, never shared, never overwritten."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from werdict.files import WITHOUT_LINKS, lock, named_path, trusted

FILES = ("config.yaml", "overrides.yaml")  # that every run begins with, and without which none is resumed
LATEST = "latest"  # the link to the newest run, in runs/
DATA_RECORD = "data_fingerprint"  # of the prepared data that the run reads
INIT_RECORD = "init_source.json"  # which file the run started from, and how that was then
TOO_SHORT = "too_short.tsv"  # cuts that are too short for the encoder
ACCEPTED = "accepted.yaml"  # changes that the user has accepted, since a checkpoint may be older
FAILED = "failed.txt"  # why a run has ended by itself without a result
PLAIN = re.compile(r"[\w./:+-]+", re.ASCII)
PARTS = "parts"  # key of a checkpoint whose tensors are in a folder, and the suffix of the folder
UPDATE_FILE = re.compile(r"update-(\d+)\.ckpt")
UNSTARTED = {".lock", "config.yaml", DATA_RECORD, INIT_RECORD, TOO_SHORT}


def has_begun(folder: Path) -> bool:
    """Return whether a run was begun in a folder, and can be resumed."""
    return all((folder / name).is_file() for name in FILES)


def create_run_folder(parent: Path) -> Path:
    """Create and return a new folder named by date and time below ``parent``, which is created if needed."""
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in itertools.count(1):
        folder = parent.resolve() / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def point_latest(folder: Path, link: Path) -> None:
    """Point the link ``runs/latest`` at a new run, where the file system has links; a file of that name stays."""
    if link.exists() and not link.is_symlink():
        return
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        fresh.symlink_to(os.path.relpath(folder, link.parent.resolve()))
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
    else:
        fresh.replace(link)


def usable_folder(value: object, key: str) -> Path:
    """Return the absolute folder that ``key`` names, without creating it.

    Raises:
        ValueError: it lies below a file, or cannot be created.
    """
    folder = named_path(value).resolve()
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise ValueError(f"{key}: {str(folder)!r} cannot be created: {str(nearest)!r} is not a folder; name another")
    # an existing folder may be read-only: prepared data are only read
    if nearest != folder and not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{key}: {str(folder)!r} cannot be created: {str(nearest)!r} is not writable; name another")
    return folder


def free_folder(value: object, key: str) -> Path:
    """Return the absolute folder that ``key`` names, without creating it; refuse one that is not empty."""
    folder = usable_folder(value, key)
    names = set(os.listdir(folder)) if folder.exists() else set()
    if ".lock" in names:
        # fails if a run is active there: its folder must not be removed
        with lock_run_dir(folder):
            pass
        # all there is if a run was ended before it had recorded its start
        names -= UNSTARTED if names <= UNSTARTED else set()
    if names:
        again = f"continue the run in it with resume={value}, " if "config.yaml" in names and key == "run_dir" else ""
        raise ValueError(f"{key}: {folder} exists and is not empty; {again}name another folder, or remove it")
    return folder


def claim_run_folder(value: object, key: str = "run_dir") -> Path:
    """Create the folder that the user named by ``key``; refuse one that is not empty."""
    folder = free_folder(value, key)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def new_run_folder(run_dir: object, recipe: str) -> Path:
    """Create the folder of a run: the one that the user named, or a new one of its recipe, which is then the latest."""
    if run_dir is not None:
        return claim_run_folder(run_dir)
    folder = create_run_folder(Path("runs") / recipe)
    point_latest(folder, Path("runs") / LATEST)
    return folder


def update_files(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a folder by update, newest first; they may be damaged."""
    checkpoints = {
        int(match[1]): path for path in folder.glob("update-*") if (match := UPDATE_FILE.fullmatch(path.name))
    }
    return dict(sorted(checkpoints.items(), reverse=True))


def newest_update(folder: Path) -> int | None:
    """Return the update that ``last.ckpt`` links to, else the newest in the folder; None without checkpoints."""
    last = UPDATE_FILE.fullmatch((folder / "last.ckpt").resolve().name)
    return int(last[1]) if last else next(iter(update_files(folder)), None)


@contextlib.contextmanager
def lock_run_dir(folder: Path) -> Iterator[None]:
    """Lock a run's folder, so that one run at a time writes to it; the lock ends with the processes that hold it.

    Raises:
        ValueError: another process holds the lock.
    """
    with (folder / ".lock").open("a") as file:
        try:
            lock(file)
        except BlockingIOError:
            raise ValueError(f"another process is training in {folder}; wait for its end, or end it") from None
        yield


def backup_existing(folder: Path, names: Sequence[str]) -> list[tuple[Path, str]]:
    """Rename files and folders of a run, before new ones are written; return the paths with their free names."""
    renamed = []
    for path in (folder / name for name in names):
        if os.path.lexists(path):
            renamed.append((path, path.rename(backup_path(path)).name))
    return renamed


def backup_path(path: Path) -> Path:
    """Return a free name beside a file for its present content."""
    names = (path.with_name(f"{path.stem}.backup{attempt}{path.suffix}") for attempt in itertools.count(1))
    return next(free for free in names if not os.path.lexists(free))


def quoted(value: str) -> str:
    """Return a value in quotes of Hydra's grammar, whatever characters it has."""
    # a backslash is special only in front of a quote
    escaped = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), value)
    return f"'{escaped}'"


def resume_command(run_dir: Path | str) -> str:
    """Return the command that resumes a run, to be pasted into a shell: a folder may have any name."""
    place, packages = str(run_dir), ",".join(trusted())
    trust = f" {shlex.quote(f'trust=[{packages}]')}" if packages else ""
    return f"asr-train {shlex.quote(f'resume={place if PLAIN.fullmatch(place) else quoted(place)}')}{trust}"
