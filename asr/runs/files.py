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

from asr.run.options import decides
from werdict.error_files import depends_on_audio
from werdict.files import at, flatten, is_within, read_json, read_yaml
from werdict.former_names import with_present_names
from werdict.runs import Curve, SetErrors
from werdict.scoring import Unit

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
# what must stand in the files of a run, and of what kind
IN_CONFIG = {"seed": int, "weights": str, "decode": list, "decode_test": bool, "callbacks": dict | None}
IN_SUMMARY = {
    **{"system": dict, "seed": int, "budget": int, "data": str, "notes": list, "test": dict, "training": dict},
    **{"cost": dict, "num_parameters": int, "peak_memory_mb": float | int},
}
DAMAGED = (ValueError, OSError, LookupError, TypeError, AttributeError)  # what the rest of a damaged file raises
CURVES = ("train/loss", "train/lr", "train/gradient_norm", "val/")  # names, or their beginnings


def run_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``system``, ``seed`` and ``budget`` (updates) of a run, for its summary.

    Args:
        config: of the run, resolved.
    """
    return {"system": system_of(config), "seed": config["seed"], "budget": at(config, *BUDGET.split("."))}


def system_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return by dotted key what decides the result of a run beside its seed.

    Args:
        config: of the run, resolved.
    """
    decoded, is_raw = config["decode"][0], config["weights"] == "raw"
    callbacks = {
        name: node
        for name, node in (config["callbacks"] or {}).items()
        if not _only_watches(node, is_raw and decoded != "average")
    }
    without = [*(["weights"] if is_raw else []), *(["decode"] if decoded == "best" else [])]
    tuned = at(config, "sweep", "tuned") or {}
    if tuned.get("studies", 1) != 1:
        without += tuned["keys"]  # each study has found its own
    system = {
        key: value
        for key, value in flatten({**config, "callbacks": callbacks, "decode": decoded}).items()
        if decides(key) in ("updates", "result") and not is_within(key, without)
    }
    for key in ("trainer.devices", "trainer.num_nodes"):
        count = system.get(key)  # or a list of devices
        # more processes make larger updates
        if count in (None, 1, "1") or (isinstance(count, list) and len(count) == 1):
            system.pop(key, None)
    if at(config, "trainer", "max_epochs") == -1:
        # converted from epochs, the budget depends on the seed, and so do schedules that end with it
        budget = system.pop(BUDGET)
        system = {
            key: BUDGET if key.startswith("schedule.") and value == budget else value for key, value in system.items()
        }
    return system


def _only_watches(node: Any, without_averages: bool) -> bool:
    """Return whether a callback leaves alone what the run is decoded with."""
    target = str(at(node, "_target_"))
    if target == AVERAGING:
        return without_averages
    return node is None or target in WATCHING or target.startswith(OWN_CALLBACKS)


@dataclass(frozen=True)
class RunFiles:
    """What a run has written about itself.

    Attributes:
        overrides: of the command line that began the run.
        config: composed and resolved.
        summary: empty if the run has not finished.
    """

    folder: Path
    overrides: Sequence[str]
    config: Mapping[str, Any]
    summary: Mapping[str, Any]

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The ``system``, ``seed`` and ``budget`` of the run."""
        return self.summary or run_settings(self.config)

    @property
    def unit(self) -> Unit:
        """What its error rates count."""
        return at(self.config, "data", "scoring_unit") or "word"

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
            references=at(self.summary, "test", name, "references"),
            depends_on_audio=depends_on_audio(at(self.summary, "test", name, "dependence_p")),
            seen_speakers=bool(at(self.summary, "data_splits", name, "num_seen_speakers")),
        )


def read_run(folder: Path) -> RunFiles:
    """Read the config of a run and, if it has finished, its summary.

    Raises:
        ValueError: a file does not exist, or is damaged.
    """
    summary, config, words = folder / SUMMARY, folder / "config.yaml", folder / "overrides.yaml"
    overrides = read_yaml(words)
    if not isinstance(overrides, list) or not all(isinstance(word, str) for word in overrides):
        raise ValueError(f"{words} is damaged: it must be a list of overrides")
    read = _checked(read_json(summary), IN_SUMMARY, summary) if summary.is_file() else {}
    return RunFiles(folder, overrides, _checked(with_present_names(read_yaml(config)), IN_CONFIG, config), read)


def _checked(data: Any, kinds: Mapping[str, Any], path: Path) -> Any:
    for key, kind in kinds.items():
        if not isinstance(at(data, key), kind):
            raise ValueError(f"{path} is damaged: {key} must not be {at(data, key)!r}")
    return data


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
