"""The runs under a folder: how they stand, and how much room they take."""

from __future__ import annotations

import datetime
import fcntl
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size

from asr.compare.inputs.run_files import DAMAGED, RunFiles, read_run
from asr.compare.inputs.run_folders import name_systems
from asr.evaluation.formatting import percent, shortened
from asr.evaluation.metrics_csv import best_dev_wer
from asr.plain_data import at
from asr.run.folder import FAILED, UPDATE_FILE, newest_update

FILES = ("config.yaml", "overrides.yaml")  # that every run begins with
BEST = "best.ckpt"
MB = 1e6  # bytes
MAX_SYSTEM = 40  # characters
COLUMNS = ("started", "recipe", "system", "seed", "updates", "WER dev %", "WER test %", "status", "MB", "run")


@dataclass(frozen=True)
class ListedRun:
    """A row of the list; what a run does not have yet is None.

    Attributes:
        started: local time, ISO 8601.
        updates: of its newest checkpoint, or all if it has finished.
        wer_dev: the lowest, as a fraction, and ``wer_test`` that of each test set.
        status: ``running``, ``interrupted``, ``failed`` or ``finished``.
        other_checkpoints_mb: of its size, what checkpoints take that the best one does not need.
    """

    run: str
    started: str
    recipe: str
    system: str
    seed: int
    updates: int
    max_updates: int
    wer_dev: float | None
    wer_test: dict[str, float]
    status: str
    size_mb: float
    other_checkpoints_mb: float


def list_runs(folders: Iterable[Path], default_recipe: str) -> tuple[list[ListedRun], list[str]]:
    """Return the runs at and below folders, and which could not be read, and why.

    Args:
        folders: that are searched.
        default_recipe: of runs whose overrides name none.
    """
    runs, problems = [], []
    for path in dict.fromkeys(path for folder in folders for path in run_folders(folder)):
        try:
            runs.append(read_run(path))
        except (ValueError, OSError) as error:
            problems.append(f"{path} is left out: {error}")
    rows = []
    for run, system in zip(runs, name_systems(runs)[0], strict=True):
        try:
            rows.append(_row(run, system, default_recipe))
        except DAMAGED as error:
            problems.append(f"{run.folder} is left out: a file of it is damaged: {error!r}")
    return rows, problems


def run_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs at and below a folder, without following links."""
    for place, names, files in os.walk(folder):
        names.sort()
        if {*FILES} <= {*files}:
            names.clear()  # wandb keeps a config.yaml of its own in there
            yield Path(place)


def _row(run: RunFiles, system: str, default_recipe: str) -> ListedRun:
    recipes = [word.partition("=")[2] for word in run.overrides if word.startswith("recipe=")]
    sizes, others = _sizes(run.folder)
    wer = best_dev_wer(run.folder)
    max_updates = int(run.settings["budget"])
    return ListedRun(
        run=str(run.folder),
        started=datetime.datetime.fromtimestamp((run.folder / FILES[0]).stat().st_mtime).isoformat(" ", "minutes"),
        recipe=recipes[-1] if recipes else default_recipe,
        system=system,
        seed=run.settings["seed"],
        updates=newest_update(run.folder / "checkpoints") or (max_updates if run.summary else 0),
        max_updates=max_updates,
        wer_dev=wer if math.isfinite(wer) else None,
        wer_test={name: errors["wer"] for name, errors in (at(run.summary, "test") or {}).items()},
        status=_status(run),
        size_mb=round(sizes / MB, 1),
        other_checkpoints_mb=round(others / MB, 1),
    )


def _status(run: RunFiles) -> str:
    if _is_locked(run.folder / ".lock"):
        return "running"
    if run.summary:
        return "finished"
    return "failed" if (run.folder / FAILED).exists() else "interrupted"


def _is_locked(path: Path) -> bool:
    """Return whether another process trains in a run's folder."""
    try:
        with path.open() as file:
            # shared, and released at once: a run that starts just now asks for an exclusive lock
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a copy without the file, or a disk that locks nothing
    return False


def _sizes(folder: Path) -> tuple[int, int]:
    """Return the bytes of all files, and of the checkpoints that best.ckpt does not need; links count once."""
    names: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for place, _, files in os.walk(folder):
        for name in files:
            status = os.lstat(os.path.join(place, name))
            names[status.st_ino, status.st_size].add(name)
    others = [
        size for (_, size), alike in names.items() if any(map(UPDATE_FILE.fullmatch, alike)) and BEST not in alike
    ]
    return sum(size for _, size in names), sum(others)


def sort_key(row: ListedRun, option: str) -> tuple[bool, Any]:
    """Return what rows are sorted by: a column, those without a value last."""
    value = getattr(row, option)
    if isinstance(value, dict):  # the mean of the test sets
        value = sum(value.values()) / len(value) if value else None
    return value is None, value or 0 if value is None or isinstance(value, float) else value


def lines_of(rows: Iterable[ListedRun]) -> list[str]:
    """Return the list as text in columns, one line for each run, which no terminal folds into several."""
    table = [
        COLUMNS,
        *(
            (
                row.started,
                row.recipe,
                shortened(row.system, MAX_SYSTEM),
                str(row.seed),
                f"{row.updates}/{row.max_updates}",
                percent(row.wer_dev),
                " / ".join(map(percent, row.wer_test.values())) or percent(None),
                row.status,
                f"{row.size_mb:.0f}",
                row.run,
            )
            for row in rows
        ),
    ]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(set_cell_size, cells, widths)).rstrip() for cells in table]
