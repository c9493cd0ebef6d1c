"""Reads metrics.csv, every number that a run logs."""

from __future__ import annotations

import bisect
import csv
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from asr.former_names import with_present_names
from asr.run.options import RunOptions, SavedRun, decides
from werdict.error_files import depends_on_audio
from werdict.errors import naming_place
from werdict.files import flatten, get_nested, is_within, read_json, read_yaml
from werdict.runs import Curve, SetErrors

HEADER = ("step", "name", "value")
SMALLEST, LARGEST = 1e-30, 1e15  # absolute values that an axis can show

Points = tuple["array[int]", "array[float]"]  # steps and values in the order of logging


def read_metrics(path: Path, is_wanted: Callable[[str], bool]) -> dict[str, Points]:
    """Read the metrics whose names are wanted."""
    points: dict[str, Points] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for step, name, value in _rows(file):
            if is_wanted(name):
                steps, values = points.setdefault(name, (array("q"), array("d")))
                steps.append(int(step))
                # curves leave out what is not a number
                number = float(value)
                values.append(number if number == 0 or SMALLEST <= abs(number) <= LARGEST else math.nan)
    return points


def best_dev_wer(run_dir: Path) -> float:
    """Return the lowest WER on the development sets that a run has reached so far; infinity if there is none."""
    metrics = run_dir / "metrics.csv"
    points = read_metrics(metrics, lambda name: name == "val/wer") if metrics.is_file() else {}
    values = points["val/wer"][1] if points else []
    return min(filter(math.isfinite, values), default=math.inf)


def rows_before(file: IO[str], update: int) -> Iterator[list[str]]:
    """Yield the header and the rows that were logged before an update.

    Args:
        file: the table, open for reading.
        update: number of updates done when the run is resumed.
    """
    yield list(HEADER)
    yield from (row for row in _rows(file) if int(row[0]) < update)


def _rows(file: IO[str]) -> Iterator[list[str]]:
    """Yield the rows after the header; one without an end is what a killed run has left, and not whole."""
    next(file, None)
    return csv.reader(line for line in file if line.endswith("\n"))


BUDGET = "trainer.max_steps"
OWN_CALLBACKS = "asr.training.callbacks."
AVERAGING = f"{OWN_CALLBACKS}checkpoints.WeightAveraging"
# other callbacks may stop the training
WATCHING = tuple(
    f"lightning.pytorch.callbacks.{name}" for name in ("DeviceStatsMonitor", "LearningRateMonitor", "ModelSummary")
)
SUMMARY = "report/summary.json"
ELAPSED = "train/elapsed_s"
# what must stand in the summary of a run, and of what kind
IN_SUMMARY = {
    **{"system": dict, "seed": int, "budget": int, "data": str, "notes": list, "test": dict, "training": dict},
    **{"cost": dict, "num_parameters": int, "peak_memory_mb": float | int},
}
DAMAGED = (ValueError, OSError, LookupError, TypeError, AttributeError)  # what the rest of a damaged file raises
CURVES = ("train/loss", "train/lr", "train/gradient_norm", "val/")  # names, or their beginnings


def run_settings(options: RunOptions | SavedRun) -> dict[str, Any]:
    """Return the ``system``, ``seed`` and ``budget`` (updates) of a run, for its summary."""
    return {"system": system_of(options), "seed": options.seed, "budget": options.trainer.max_steps}


def system_of(options: RunOptions | SavedRun) -> dict[str, Any]:
    """Return by dotted key what decides the result of a run beside its seed."""
    decoded, is_raw = options.decode[0], options.weights == "raw"
    callbacks = {
        name: node.plain()
        for name, node in (options.callbacks or {}).items()
        if node is not None and not _only_watches(node.target, is_raw and decoded != "average")
    }
    without = [*(["weights"] if is_raw else []), *(["decode"] if decoded == "best" else [])]
    if (tuned := options.sweep.tuned) and tuned.studies != 1:
        without += tuned.keys  # each study has found its own
    system = {
        key: value
        for key, value in flatten({**options.plain(), "callbacks": callbacks, "decode": decoded}).items()
        if decides(key) in ("updates", "result") and not is_within(key, without)
    }
    for key in ("trainer.devices", "trainer.num_nodes"):
        count = system.get(key)  # or a list of devices
        # more processes make larger updates
        if count in (None, 1, "1") or (isinstance(count, list) and len(count) == 1):
            system.pop(key, None)
    if options.trainer.max_epochs == -1:
        # converted from epochs, the budget depends on the seed, and so do schedules that end with it
        budget = system.pop(BUDGET)
        system = {
            key: BUDGET if key.startswith("schedule.") and value == budget else value for key, value in system.items()
        }
    return system


def _only_watches(target: str, without_averages: bool) -> bool:
    """Return whether a callback leaves alone what the run is decoded with."""
    if target == AVERAGING:
        return without_averages
    return target in WATCHING or target.startswith(OWN_CALLBACKS)


@dataclass(frozen=True)
class RunFiles:
    """What a run has written about itself.

    Attributes:
        overrides: of the command line that began the run.
        options: of its config.
        summary: empty if the run has not finished.
    """

    folder: Path
    overrides: Sequence[str]
    options: SavedRun
    summary: Mapping[str, Any]

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The ``system``, ``seed`` and ``budget`` of the run."""
        return self.summary or run_settings(self.options)

    def set_errors(self, name: str) -> SetErrors:
        """Read the errors on a test set, as ``werdict.error_files.write_report`` has written them."""
        with (self.folder / "decode" / f"{name}.errors.tsv").open(newline="\n", encoding="utf-8") as file:
            next(file, None)
            rows = sorted(line.removesuffix("\n").split("\t") for line in file)
        if not any(int(row[2]) for row in rows):
            raise ValueError(f"{file.name} is damaged: it has no words")
        ids, speakers, words, *edits = zip(*rows, strict=True)
        return SetErrors(
            ids=ids,
            speakers=tuple(speaker or None for speaker in speakers),
            words=tuple(map(int, words)),
            errors=tuple(sum(map(int, counts)) for counts in zip(*edits, strict=True)),
            references=get_nested(self.summary, "test", name, "references"),
            depends_on_audio=depends_on_audio(get_nested(self.summary, "test", name, "dependence_p")),
            seen_speakers=bool(get_nested(self.summary, "data_splits", name, "num_seen_speakers")),
        )


def read_run(folder: Path) -> RunFiles:
    """Read the config of a run and, if it has finished, its summary.

    Raises:
        ValueError: a file does not exist, or is damaged.
    """
    summary, words = folder / SUMMARY, folder / "overrides.yaml"
    overrides = read_yaml(words)
    if not isinstance(overrides, list) or not all(isinstance(word, str) for word in overrides):
        raise ValueError(f"{words} is damaged: it must be a list of overrides")
    finished = read_json(summary) if summary.is_file() else {}
    for key, kind in IN_SUMMARY.items() if finished else ():
        if not isinstance(get_nested(finished, key), kind):
            raise ValueError(f"{summary} is damaged: {key} must not be {get_nested(finished, key)!r}")
    return RunFiles(folder, overrides, read_options(folder / "config.yaml"), finished)


def read_options(path: Path) -> SavedRun:
    """Read the config of a run.

    Raises:
        ValueError: the file does not exist, or is damaged.
    """
    config = with_present_names(read_yaml(path))
    with naming_place(f"{path} is damaged"):
        return SavedRun.of(config)


def read_curves(path: Path) -> dict[str, Curve]:
    """Read losses, learning rates and error rates of a metrics.csv.

    A row holds the number of updates before its own update; a point of a curve has the training time up to it.
    """
    points = read_metrics(path, lambda name: name == ELAPSED or name.startswith(CURVES))
    elapsed = _latest(*points.pop(ELAPSED)) if ELAPSED in points else ([], [])
    return {name: _curve(*_latest(*logged), *elapsed) for name, logged in points.items()}


def _latest(steps: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """Return the updates done in increasing order, each with the value that was logged last for it."""
    # unique returns the first of equal steps: reversed, that is the last one logged
    updates, places = np.unique(np.asarray(steps)[::-1], return_index=True)
    return (updates + 1).tolist(), np.asarray(values)[::-1][places].tolist()


def _curve(updates: list[int], values: list[float], times: list[int], elapsed: list[float]) -> Curve:
    if not times or updates[0] < times[0]:
        return Curve(tuple(updates), (), tuple(values))
    # a validation may fall between two logged updates
    seconds = tuple(elapsed[bisect.bisect_right(times, update) - 1] for update in updates)
    return Curve(tuple(updates), seconds, tuple(values))
