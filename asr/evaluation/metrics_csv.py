"""Reads metrics.csv, every number that a run logs: line by line and within limits, because others may have made it.

A run of ten million updates that logs every tenth one writes about 11 million lines of 32 bytes, and four million
points of the curves that are shown.
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

HEADER = ("step", "name", "value")
MAX_LINE = 2**16  # characters
MAX_LINES = 12_000_000
MAX_POINTS = 5_000_000  # of all curves together, kept in memory
MAX_CURVES = 1000
MAX_STEP = 2**62
SMALLEST, LARGEST = 1e-30, 1e15  # absolute values that an axis can show

Points = tuple["array[int]", "array[float]"]  # steps and values in the order of logging


def bounded_lines(file: IO[str], max_lines: int | None = None) -> Iterator[str]:
    """Yield the lines of a file with their ends, one in memory at a time.

    Args:
        file: open for reading.
        max_lines: allowed number; None: ``MAX_LINES``.

    Raises:
        ValueError: a line is too long, or there are too many lines.
    """
    max_lines = MAX_LINES if max_lines is None else max_lines
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), ""), start=1):
        if len(line) > MAX_LINE:
            raise ValueError(f"line {number} has more than {MAX_LINE} characters")
        if number > max_lines:
            raise ValueError(f"it has more than {max_lines} lines")
        yield line


def read_metrics(path: Path, is_wanted: Callable[[str], bool], max_points: int | None = None) -> dict[str, Points]:
    """Read metrics by name; rows without three fields, such as a truncated last one, and without numbers are skipped.

    Args:
        path: of the file.
        is_wanted: whether to read the metric of this name.
        max_points: allowed number; None: ``MAX_POINTS``.

    Raises:
        ValueError: the file is not a table, or too large.
    """
    check_regular_file(path)
    max_points = MAX_POINTS if max_points is None else max_points
    points: dict[str, Points] = {}
    num_points = 0
    with _naming_table(path), path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.reader(line.replace("\0", "") for line in bounded_lines(file))
        _check_header(next(rows, list(HEADER)))
        for row in rows:
            if len(row) != 3 or not is_wanted(row[1]):
                continue
            _add_point(points, *row)
            num_points += 1  # also of a row without numbers, which takes as long
            if num_points > max_points or len(points) > MAX_CURVES:
                raise ValueError(f"it has more than {max_points} points, or than {MAX_CURVES} curves")
    return points


def _add_point(points: dict[str, Points], step: str, name: str, value: str) -> None:
    try:
        update, number = int(step), float(value)
    except ValueError:
        return
    if not 0 <= update < MAX_STEP:
        return
    if name not in points:
        points[name] = (array("q"), array("d"))
    steps, values = points[name]
    steps.append(update)
    # curves leave out what is not a number
    values.append(number if number == 0 or SMALLEST <= abs(number) <= LARGEST else math.nan)


def rows_before(path: Path, file: IO[str], update: int) -> Iterator[list[str]]:
    """Yield the header and the rows that were logged before an update; a truncated last row is skipped.

    Args:
        path: of the table, for messages.
        file: the table, open for reading.
        update: number of updates done when the run is resumed.

    Raises:
        ValueError: the file is not a table of metrics.
    """
    with _naming_table(path, "; move it away to resume"):
        rows = csv.reader(bounded_lines(file))
        header = next(rows, [])
        _check_header(header)
        yield header
        yield from (row for row in rows if len(row) == 3 and _is_before(row[0], update))


def _check_header(header: list[str]) -> None:
    if tuple(header) != HEADER:
        raise ValueError(f"it begins {header[:3]!s:.80}, not {list(HEADER)}")


def _is_before(step: str, update: int) -> bool:
    try:
        return int(step) < update
    except ValueError:
        return False


@contextlib.contextmanager
def _naming_table(path: Path, advice: str = "") -> Iterator[None]:
    try:
        yield
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path} is not a table of metrics: {error}{advice}") from None
