"""Tables in the folders of runs, which others may have made: read line by line, within limits.

A run of ten million updates that logs every tenth one leaves some 11 million lines of 32 bytes, and four million points
of the curves that are looked at.
"""

from __future__ import annotations

import contextlib
import csv
import math
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from asr.safe_io import check_regular_file

MAX_LINE = 2**16  # characters
MAX_LINES = 12_000_000
MAX_POINTS = 5_000_000  # of all curves together, kept in memory
MAX_CURVES = 1000
MAX_STEP = 2**62
SMALLEST, LARGEST = 1e-30, 1e15  # values, without their sign

Points = tuple["array[int]", "array[float]"]  # steps and values, as they were logged


def bounded_lines(file: IO[str], max_lines: int | None = None) -> Iterator[str]:
    """Yield the lines of a file with their ends, without ever holding more than one.

    Args:
        file: open for reading.
        max_lines: that it may have; ``MAX_LINES`` if not given.

    Raises:
        ValueError: a line is too long, or there are too many.
    """
    max_lines = MAX_LINES if max_lines is None else max_lines
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), ""), start=1):
        if len(line) > MAX_LINE:
            raise ValueError(f"line {number} has more than {MAX_LINE} characters")
        if number > max_lines:
            raise ValueError(f"it has more than {max_lines} lines")
        yield line


def read_points(path: Path, is_wanted: Callable[[str], bool]) -> dict[str, Points]:
    """Read some of the metrics of a metrics.csv; rows that are none, such as a torn last one, are passed over.

    Args:
        path: of the file.
        is_wanted: tells by its name whether a metric is read.

    Raises:
        ValueError: it is no table, or too large a one.
    """
    check_regular_file(path)
    points: dict[str, Points] = {}
    num_points = 0
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            for row in csv.reader(line.replace("\0", "") for line in bounded_lines(file)):
                if len(row) != 3 or not is_wanted(row[1]):
                    continue
                num_points += _add_point(points, *row)
                if num_points > MAX_POINTS or len(points) > MAX_CURVES:
                    raise ValueError(f"it has more than {MAX_POINTS} points, or than {MAX_CURVES} curves")
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path} is not a table of metrics: {error}") from None
    return points


def _add_point(points: dict[str, Points], step: str, name: str, value: str) -> bool:
    with contextlib.suppress(ValueError):
        update, number = int(step), float(value)
        if abs(update) < MAX_STEP:
            steps, values = points.setdefault(name, (array("q"), array("d")))
            steps.append(update)
            # beyond these no axis can be drawn; what is no number is left out of curves
            values.append(number if number == 0 or SMALLEST <= abs(number) <= LARGEST else math.nan)
            return True
    return False
