"""The tables of a run's folder: errors per utterance, and numbers over the course of the training."""

from __future__ import annotations

import bisect
import contextlib
import csv
from collections import defaultdict
from pathlib import Path

from asr.evaluation.comparison.plain_files import check_file
from asr.evaluation.comparison.runs import Curve, SetErrors
from asr.evaluation.report import ERROR_COLUMNS

ELAPSED = "train/elapsed_s"
CURVES = ("train/loss", "train/lr", "train/gradient_norm", "val/")  # names, or how they begin
MAX_DIGITS = 9  # of a count


def read_errors(path: Path) -> SetErrors:
    """Read a ``<set>.errors.tsv`` of ``asr.evaluation.report.write_report``.

    Raises:
        ValueError: it is no such file; the message names the line.
    """
    check_file(path)
    try:
        header, *lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except ValueError:
        raise ValueError(f"{path} is no text in UTF-8") from None
    if tuple(header.split("\t")) != ERROR_COLUMNS:
        raise ValueError(f"{path}, line 1: the columns must be {', '.join(ERROR_COLUMNS)}")
    rows: dict[str, tuple[str | None, int, int]] = {}
    for number, line in enumerate(lines, start=2):
        id, speaker, *counts = line.split("\t")
        if len(counts) != 4 or id in rows or not all(_is_count(count) for count in counts):
            raise ValueError(f"{path}, line {number}: expected a new id, a speaker and four counts, parted by tabs")
        rows[id] = (speaker or None, int(counts[0]), sum(map(int, counts[1:])))
    if not sum(words for _, words, _ in rows.values()):
        raise ValueError(f"{path}: the references hold no word, so that there is no error rate")
    ids = sorted(rows)
    speakers, words, errors = zip(*(rows[id] for id in ids), strict=True)
    return SetErrors(tuple(ids), speakers, words, errors)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def read_curves(path: Path) -> dict[str, Curve]:
    """Read losses, rates and error rates of a metrics.csv; rows that are none are passed over.

    A row is logged with the number of updates before its own; a point carries the seconds of training up to it.

    Raises:
        ValueError: it is no table.
    """
    check_file(path)
    points: dict[str, dict[int, float]] = defaultdict(dict)
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        try:
            for row in csv.reader(line.replace("\0", "") for line in file):
                _add_point(points, row)
        except csv.Error as error:
            raise ValueError(f"{path} is no table: {error}") from None
    elapsed = sorted(points.pop(ELAPSED, {}).items())
    return {name: _curve(sorted(values.items()), elapsed) for name, values in points.items()}


def _add_point(points: dict[str, dict[int, float]], row: list[str]) -> None:
    if len(row) == 3 and (row[1] == ELAPSED or row[1].startswith(CURVES)):
        with contextlib.suppress(ValueError):
            points[row[1]][int(row[0]) + 1] = float(row[2])


def _curve(points: list[tuple[int, float]], elapsed: list[tuple[int, float]]) -> Curve:
    updates, values = zip(*points, strict=True)
    times = [update for update, _ in elapsed]
    if not times or updates[0] < times[0]:
        return Curve(updates, (), values)
    # a validation may fall between two rows of the training
    seconds = tuple(elapsed[bisect.bisect_right(times, update) - 1][1] for update in updates)
    return Curve(updates, seconds, values)
