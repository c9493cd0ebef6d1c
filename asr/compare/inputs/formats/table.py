"""Tables: CSV, TSV, JSON lines, or Parquet if pandas reads it; a row is an utterance.

The columns are ``system``, ``seed``, ``set``, ``id``, ``speaker``, ``reference`` and ``hypothesis``, or in place of the
texts ``errors`` and ``words``; further ones can be named by ``by``.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from asr.compare.inputs.rows import Row

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
TEXTS = ("id", "reference", "hypothesis", "system", "set", "speaker")
NUMBERS = ("seed", "words", "errors")


def matches(head: str) -> bool:
    """Return whether the first lines of a file are of this format: they name its columns."""
    first = head.partition("\n")[0]
    if head.startswith("PAR1"):
        return True
    if first.startswith("{"):
        return '"hypothesis"' in first or '"errors"' in first
    names = {name.strip().strip('"') for name in first.replace("\t", ",").split(",")}
    return bool(names & {"hypothesis", "errors"})


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file.

    Args:
        path: of the file.
        columns: names of the columns, if they are others.

    Raises:
        ValueError: a column is missing, or does not hold a number.
    """
    if path.suffix == ".parquet":
        import pandas as pd

        yield from rows_of(lines_of(pd.read_parquet(path)), columns, str(path))
        return
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        lines: Iterable[Mapping[str, Any]]
        if first.startswith("{"):
            lines = (json.loads(line) for line in file if line.strip())
        else:
            lines = _csv_lines(file, "\t" if "\t" in first else ",", path)
        yield from rows_of(lines, columns, str(path))


def lines_of(frame: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a pandas frame by column; None for each kind of missing value that pandas has."""
    for row in frame.astype(object).where(frame.notna(), None).itertuples(index=False):
        yield dict(zip(frame.columns, row, strict=True))


def _csv_lines(file: TextIO, delimiter: str, path: Path) -> Iterator[dict[str, str]]:
    rows = csv.reader(file, delimiter=delimiter, strict=True)
    try:
        names = next(rows)
        for row in filter(None, rows):
            if len(row) != len(names):  # as a comma in a text makes it that is not quoted
                raise csv.Error(f"expected {len(names)} columns, found {len(row)}: {row}")
            yield dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num}: {error}") from None


def rows_of(lines: Iterable[Mapping[str, Any]], columns: Mapping[str, str], place: str) -> Iterator[Row]:
    """Yield rows with these fields.

    Args:
        lines: by column.
        columns: names of the columns, if they are others.
        place: names them in messages.

    Raises:
        ValueError: a column is missing, or does not hold a number.
    """
    names = {field: columns.get(field, field) for field in (*TEXTS, *NUMBERS)}
    used = {*names.values()}
    places: Counter[object] = Counter()
    for number, line in enumerate(lines, 1):
        values = {field: line[name] for field, name in names.items() if name in line and not _is_missing(line[name])}
        if not ("hypothesis" in values or names["hypothesis"] in line) and not {"errors", "words"} <= values.keys():
            expected = f"{names['hypothesis']!r}, or {names['errors']!r} and {names['words']!r}"
            raise ValueError(f"{place}, row {number}: expected the columns {expected}; found {', '.join(line)}")
        try:
            numbers = {field: _whole(values[field]) for field in NUMBERS if field in values}
        except ValueError as error:
            raise ValueError(f"{place}, row {number}: {error}") from None
        # the same few systems and speakers, and the same references of each system, take memory once
        texts = {field: sys.intern(str(values[field])) for field in TEXTS if field in values}
        if not numbers.keys() >= {"errors", "words"}:
            texts.setdefault("hypothesis", "")  # an empty text, as CSV has it
            if names["reference"] in line:
                texts.setdefault("reference", "")
        others = {name: sys.intern(str(line[name])) for name in line.keys() - used if not _is_missing(line[name])}
        if "id" not in texts:  # then the place among those of the same run is its name
            run = (texts.get("system"), numbers.get("seed"), texts.get("set"))
            places[run] += 1
            texts["id"] = sys.intern(f"#{places[run]}")
        yield Row(**texts, **numbers, columns=others)  # type: ignore[arg-type]


def _is_missing(value: Any) -> bool:
    # NaN, as pandas writes what it does not have
    return value is None or value == "" or value != value


def _whole(value: Any) -> int:
    number = float(value)
    if number != int(number) or number < 0:
        raise ValueError(f"expected a whole number, given {value!r}")
    return int(number)
