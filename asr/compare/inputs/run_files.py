"""The tables in a run's folder: errors per utterance, and metrics over training."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asr.compare.inputs.runs import Curve, SetErrors
from asr.evaluation.metrics_csv import bounded_lines, read_metrics
from asr.evaluation.report import ERROR_COLUMNS
from asr.evaluation.wer import Unit
from asr.safe_io import check_regular_file

ELAPSED = "train/elapsed_s"
CURVES = ("train/loss", "train/lr", "train/gradient_norm", "val/")  # names, or their beginnings
MAX_POINTS = 1_000_000  # of a run's curves: four numbers of 250,000 updates; reading them takes some seconds
MAX_DIGITS = 9  # of a count
MAX_UTTERANCES = 300_000  # of all test sets of a run: more than LibriSpeech's training set has


def read_errors(path: Path, max_utterances: int | None = None, unit: Unit = "word") -> SetErrors:
    """Read a ``<set>.errors.tsv`` of ``asr.evaluation.report.write_report``.

    Args:
        path: of the file.
        max_utterances: allowed number; None: ``MAX_UTTERANCES``.
        unit: what counted as a word.

    Raises:
        ValueError: the file is not such a table; the message names the line.
    """
    check_regular_file(path)
    max_utterances = MAX_UTTERANCES if max_utterances is None else max_utterances
    rows: dict[str, tuple[str | None, int, int]] = {}
    try:
        with path.open(newline="\n", encoding="utf-8") as file:
            lines = bounded_lines(file)
            if tuple(next(lines, "").removesuffix("\n").split("\t")) != ERROR_COLUMNS:
                raise ValueError(f"line 1: the columns must be {', '.join(ERROR_COLUMNS)}")
            for number, line in enumerate(lines, start=2):
                if len(rows) == max_utterances:
                    raise ValueError(f"line {number}: the test sets of a run may have {MAX_UTTERANCES} utterances")
                _add_errors(rows, line.removesuffix("\n"), number, unit)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    if not sum(words for _, words, _ in rows.values()):
        raise ValueError(f"{path}: the references contain no {unit}s, so that there is no error rate")
    ids = sorted(rows)
    speakers, words, errors = zip(*(rows[id] for id in ids), strict=True)
    return SetErrors(tuple(ids), speakers, words, errors)


def _add_errors(rows: dict[str, tuple[str | None, int, int]], line: str, number: int, unit: Unit) -> None:
    id, _, rest = line.partition("\t")
    speaker, *counts = rest.split("\t")
    # int() would also take signs, spaces and digits of other scripts
    are_counts = all(text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS for text in counts)
    if len(counts) != 4 or id in rows or not are_counts:
        raise ValueError(f"line {number}: expected a new id, a speaker and four counts, separated by tabs")
    words, substitutions, deletions, insertions = map(int, counts)
    if substitutions + deletions > words:
        raise ValueError(f"line {number}: {substitutions} substitutions and {deletions} deletions in {words} {unit}s")
    rows[id] = (speaker or None, words, substitutions + deletions + insertions)


def read_curves(path: Path) -> dict[str, Curve]:
    """Read losses, learning rates and error rates of a metrics.csv; lines that are not rows are skipped.

    A row holds the number of updates before its own update; a point of a curve has the training time up to it.

    Raises:
        ValueError: the file is not a table.
    """
    points = read_metrics(path, lambda name: name == ELAPSED or name.startswith(CURVES), MAX_POINTS)
    elapsed = _latest(*points.pop(ELAPSED)) if ELAPSED in points else ([], [])
    return {name: _curve(*_latest(*points.pop(name)), *elapsed) for name in list(points)}


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
