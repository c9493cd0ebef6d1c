"""Reads metrics.csv, every number that a run logs."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

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
