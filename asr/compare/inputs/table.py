"""Tables: CSV, TSV, JSON lines, or Parquet if pandas reads it; a row is an utterance.

The columns are ``system``, ``seed``, ``set``, ``id``, ``speaker``, ``reference`` and ``hypothesis``, or in place of the
texts ``errors`` and ``words``; further ones can be named by ``by``. A table of ``id`` and
``reference`` (or ``text``) is one of references. Case does not count in names.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.compare.inputs.rows import Row
from asr.errors import first_line
from asr.text_files import as_integer, check_header, json_objects, optional_text, read_lines, table_rows

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
TEXTS = ("id", "reference", "hypothesis", "system", "set", "speaker")
NUMBERS = ("seed", "words", "errors")
SEPARATORS = "\t,;"
PARQUET = b"PAR1"  # how its files begin
Record = tuple[str, Mapping[str, Any]]  # file and line, and values by column


def matches(head: str, keys: Collection[str]) -> bool:
    """Return whether a file's first line, or the keys of its first JSON object, name the columns."""
    first = re.split(f"[{SEPARATORS}]", head.partition("\n")[0])
    names = {name.strip(' "').lower() for name in keys or first}
    return bool(names & {"hypothesis", "errors"}) or (
        "audio_filepath" not in names and ("reference" in names or {"id", "text"} <= names)
    )


def is_parquet(path: Path) -> bool:
    """Return whether a file is a table of Parquet."""
    with path.open("rb") as file:
        return file.read(len(PARQUET)) == PARQUET


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file.

    Args:
        path: of the file.
        columns: names of the columns, if they are others.

    Raises:
        ValueError: a column is missing, or does not hold a text or number.
    """
    if is_parquet(path):
        try:
            import pandas as pd

            frame = pd.read_parquet(path)
        except (ValueError, OSError, ImportError) as error:
            raise ValueError(f"{path} cannot be read as Parquet: {first_line(error)}") from error
        yield from rows_of(records_of(frame, str(path)), columns)
        return
    first = next(read_lines(path), "")
    records: Iterable[Record] = ((f"{path}, line {number}", line) for number, line in json_objects(path))
    if not first.startswith(("{", "[")):
        rows = table_rows(path, delimiter=max(SEPARATORS, key=first.count), strict=True)
        header = check_header(*next(rows, ("", [])))
        records = ((where, dict(zip(header, fields, strict=True))) for where, fields in rows)
    yield from rows_of(records, columns)


def records_of(table: Any, place: str) -> Iterator[Record]:
    """Yield the rows of a pandas frame, or dictionaries; None for each kind of missing value that pandas has.

    Args:
        table: of utterances.
        place: names it in messages.

    Raises:
        ValueError: two columns have one name.
    """
    lines = table
    if hasattr(table, "itertuples"):
        names = check_header(place, [*map(str, table.columns)])
        values = table.astype(object).where(table.notna(), None).itertuples(index=False)
        lines = (dict(zip(names, row, strict=True)) for row in values)
    for number, line in enumerate(lines, 1):
        yield f"{place}, row {number}", line


def rows_of(records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield rows with these fields.

    Args:
        records: each with where it stands, for messages.
        columns: names of the columns, if they are others.

    Raises:
        ValueError: a column is missing, or does not hold a text or number.
    """
    names: dict[str, str] = {}
    known: Collection[str] = ()
    places: Counter[object] = Counter()
    for where, line in records:
        if line.keys() != known:
            known = line.keys()
            names = _names(where, [*known], columns)
        try:
            texts = {field: optional_text(line[name], name) for field, name in names.items()}
            numbers = {field: _whole(text, names[field]) for field in NUMBERS if (text := texts.pop(field, None))}
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if numbers.keys() >= {"errors", "words"}:
            texts["hypothesis"] = texts.get("hypothesis") or None
        texts |= {field: texts.get(field) or None for field in ("id", "system", "set", "speaker")}
        if texts["id"] is None:  # then the place among those of the same run is its name
            run = (texts["system"], numbers.get("seed"), texts["set"])
            places[run] += 1
            texts["id"] = f"#{places[run]}"
        # NaN, as pandas writes what it does not have, is not equal to itself
        others = {name: line[name] for name in line.keys() - names.values() if isinstance(line[name], Hashable)}
        others = {name: sys.intern(str(v)) for name, v in others.items() if v not in (None, "") and v == v}
        # the same few systems and speakers, and the same references of each system, take memory once
        texts = {field: text and sys.intern(text) for field, text in texts.items()}
        yield Row(**texts, **numbers, columns=others)  # type: ignore[arg-type]


def _names(where: str, header: Collection[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the columns by what they are.

    Raises:
        ValueError: there is nothing to score, or no column that the user names as the id.
    """
    folded = {name.lower(): name for name in header}
    names = {}
    for field in (*TEXTS, *NUMBERS):
        wanted = [columns.get(field, field), field]
        if field == "reference" and "text" not in columns.values():
            wanted.append("text")
        there = (name if name in header else folded.get(name.lower()) for name in wanted)
        if name := next(filter(None, there), None):
            names[field] = name
    if not names.keys() & {"hypothesis", "reference"} and not names.keys() >= {"errors", "words"}:
        expected = f"{columns.get('hypothesis', 'hypothesis')!r}, or 'errors' and 'words'"
        raise ValueError(f"{where}: expected the columns {expected}; found {', '.join(header)}")
    if "id" in columns and "id" not in names:
        raise ValueError(f"{where}: columns.id: there is no column {columns['id']!r}; found {', '.join(header)}")
    return names


def _whole(value: str, name: str) -> int:
    if (number := as_integer(value, name)) < 0:
        raise ValueError(f"{name} must be at least 0, given {value!r}")
    return number
