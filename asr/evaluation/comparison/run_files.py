"""The tables of a run's folder: errors per utterance, and numbers over the course of the training."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asr.evaluation.comparison.runs import Curve, SetErrors
from asr.evaluation.report import ERROR_COLUMNS
from asr.safe_io import check_regular_file
from asr.table_files import bounded_lines, read_points

ELAPSED = "train/elapsed_s"
CURVES = ("train/loss", "train/lr", "train/gradient_norm", "val/")  # names, or how they begin
MAX_DIGITS = 9  # of a count
MAX_UTTERANCES = 1_000_000  # of a test set


def read_errors(path: Path) -> SetErrors:
    """Read a ``<set>.errors.tsv`` of ``asr.evaluation.report.write_report``.

    Raises:
        ValueError: it is no such file; the message names the line.
    """
    check_regular_file(path)
    rows: dict[str, tuple[str | None, int, int]] = {}
    try:
        with path.open(newline="\n", encoding="utf-8") as file:
            lines = bounded_lines(file, MAX_UTTERANCES)
            if tuple(next(lines, "").removesuffix("\n").split("\t")) != ERROR_COLUMNS:
                raise ValueError(f"line 1: the columns must be {', '.join(ERROR_COLUMNS)}")
            for number, line in enumerate(lines, start=2):
                _add_errors(rows, line.removesuffix("\n"), number)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    if not sum(words for _, words, _ in rows.values()):
        raise ValueError(f"{path}: the references hold no word, so that there is no error rate")
    ids = sorted(rows)
    speakers, words, errors = zip(*(rows[id] for id in ids), strict=True)
    return SetErrors(tuple(ids), speakers, words, errors)


def _add_errors(rows: dict[str, tuple[str | None, int, int]], line: str, number: int) -> None:
    id, _, rest = line.partition("\t")
    speaker, *counts = rest.split("\t")
    if len(counts) != 4 or id in rows or not all(_is_count(count) for count in counts):
        raise ValueError(f"line {number}: expected a new id, a speaker and four counts, parted by tabs")
    rows[id] = (speaker or None, int(counts[0]), sum(map(int, counts[1:])))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def read_curves(path: Path) -> dict[str, Curve]:
    """Read losses, rates and error rates of a metrics.csv; rows that are none are passed over.

    A row is logged with the number of updates before its own; a point carries the seconds of training up to it.

    Raises:
        ValueError: it is no table.
    """
    points = read_points(path, lambda name: name == ELAPSED or name.startswith(CURVES))
    elapsed = _latest(*points.pop(ELAPSED)) if ELAPSED in points else ([], [])
    return {name: _curve(*_latest(*points.pop(name)), *elapsed) for name in list(points)}


def _latest(steps: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """Return the updates done at each step, in order and each once, with what was logged last for it."""
    # of those that are equal, unique returns the first
    updates, places = np.unique(np.asarray(steps)[::-1], return_index=True)
    return (updates + 1).tolist(), np.asarray(values)[::-1][places].tolist()


def _curve(updates: list[int], values: list[float], times: list[int], elapsed: list[float]) -> Curve:
    if not times or updates[0] < times[0]:
        return Curve(tuple(updates), (), tuple(values))
    # a validation may fall between two rows of the training
    seconds = tuple(elapsed[bisect.bisect_right(times, update) - 1] for update in updates)
    return Curve(tuple(updates), seconds, tuple(values))
