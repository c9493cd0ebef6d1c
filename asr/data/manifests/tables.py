"""Reads a table of recordings and transcripts: TSV, CSV, lines of JSON, or LJSpeech's fields between bars."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from asr.console import PlainConsole, track
from asr.data.manifests.audio_checks import ELSEWHERE
from asr.data.manifests.rows import Row
from asr.data.manifests.splits import split_of
from asr.text_files import (
    as_number,
    as_text,
    check_header,
    composed,
    json_objects,
    read_lines,
    table_rows,
)

# of several that a table has, the first counts
ALIASES = {
    "audio": ("audio", "audio_filepath", "audio_path", "path", "file_name", "filename", "file", "wav"),
    "text": ("text", "sentence", "transcript", "transcription", "normalized_text"),
    "speaker": ("speaker", "speaker_id", "client_id"),
    "start": ("start", "offset"),
    "end": ("end",),
    "duration": ("duration",),
    "language": ("language", "lang"),
    "split": ("split",),
    "id": ("id",),
}
REQUIRED = ("audio", "text")
TIMES = ("start", "end", "duration")
TABLES = (".tsv", ".csv", ".json", ".jsonl")
JSON = (".json", ".jsonl")
# where the audio of a table may lie, and the ending that its names may lack: Common Voice, LJSpeech
FOLDERS, ENDINGS = ("", "clips", "wavs", "wav", "audio"), ("", ".wav", ".flac", ".mp3")
NUM_LOOKED_FOR = 20  # first rows, some of whose audio may be missing
LJSPEECH = ("id", "text", "normalized_text")

Record = tuple[str, Mapping[str, Any]]  # where it stands, and values by column
console = PlainConsole()


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read.

    Attributes:
        names: column by what it is, a key of ``ALIASES``.
        unused: the other columns.
    """

    names: Mapping[str, str]
    unused: Sequence[str] = ()

    def __str__(self) -> str:
        used = ", ".join(field if field == name else f"{field} from {name!r}" for field, name in self.names.items())
        return f"{used}; not used: {', '.join(self.unused)}" if self.unused else used


def find_columns(
    where: str, header: Sequence[str], user_columns: Mapping[str, str] | None = None, may_lack: bool = False
) -> Columns:
    """Return which columns are read.

    Args:
        where: file and line of the header, for messages.
        header: names of all columns.
        user_columns: columns that the user names, ``data.columns``.
        may_lack: those that are given may be missing, as in another table than that of training.

    Raises:
        ValueError: a column is missing.
    """
    user_columns = user_columns or {}
    columns = {name.strip().lower(): name for name in reversed(header)}
    names = {}
    for field, aliases in ALIASES.items():
        named = user_columns.get(field)
        if named is not None and named not in header and not may_lack:
            raise ValueError(
                f"{where}: data.columns.{field}: there is no column {named!r}; there are {', '.join(header)}"
            )
        name = named if named in header else next((columns[alias] for alias in aliases if alias in columns), None)
        if name is not None:
            names[field] = name
    if "start" not in names and "end" not in names:
        names.pop("duration", None)  # of the whole file, which says it itself
    if missing := [field for field in REQUIRED if field not in names]:
        raise ValueError(
            f"{where}: no column was recognized as {' or '.join(missing)}; there are {', '.join(header)}. Give their "
            f"names: data.columns={{{', '.join(f'{field}: COLUMN' for field in missing)}}}, or in the header: "
            f"{', '.join(REQUIRED)}, and optionally {', '.join(field for field in ALIASES if field not in REQUIRED)}"
        )
    return Columns(names, [name for name in header if name not in names.values()])


FindColumns = Callable[[Sequence[str]], Columns]


def ending(path: Path) -> str:
    """Return the ending of a file that says its format, without that of compression."""
    return Path(path.name.removesuffix(".gz")).suffix


def read_table(path: Path, user_columns: Mapping[str, str] | None = None, may_lack: bool = False) -> list[Row]:
    """Read a table, and print how it was read.

    A TSV has no quoting, a CSV has quotation marks; both have a header, unless a CSV has two or three fields between
    bars, as LJSpeech's. JSON has an object per line, or a list. Audio paths are relative to the table, or to a folder
    of ``FOLDERS`` beside it. UTF-8.

    Args:
        path: of the table.
        user_columns: columns, by what they are, that the user names.
        may_lack: as of `find_columns`.

    Raises:
        ValueError: the table is malformed; the message names the file and the line.
    """
    columns, records = _records(path, lambda header: find_columns(f"{path}, line 1", header, user_columns, may_lack))
    numbered = list(track(records, f"reading {path.name}", transient=True))
    names = [fields.get(columns.names["audio"]) for _, fields in numbered[:NUM_LOOKED_FOR]]
    folder, suffix = _place(path.parent, [str(name).strip() for name in names if name])
    rows = [row_of(where, fields, columns.names, folder, suffix) for where, fields in numbered]
    place = "" if folder == path.parent else f" (in {folder.name}/)"
    console.print_line(f"{path}: a table of {len(rows)} rows{place}: {columns}")
    return rows


def is_lhotse(path: Path) -> bool:
    """Return whether the first object of a file of JSON lines is a cut of lhotse."""
    _, first = next(json_objects(path), (1, {}))
    return "type" in first or "recording" in first or "supervisions" in first


def _records(path: Path, find: FindColumns) -> tuple[Columns, Iterable[Record]]:
    if ending(path) in JSON:
        objects = [(f"{path}, line {number}", fields) for number, fields in json_objects(path, as_written=True)]
        # not the first object alone: another may be the first part of a file
        return find([*dict.fromkeys(name for _, fields in objects for name in fields)]), objects
    first = next(read_lines(path), "")
    is_csv = ending(path) == ".csv"
    has_bars = is_csv and "|" in first and not {",", ";"} & {*first.partition("|")[0]}
    # spreadsheets separate by semicolons where numbers have a decimal comma
    quoted = {"delimiter": max(",;\t", key=first.count)}
    plain = {"delimiter": "|" if has_bars else "\t", "quoting": csv.QUOTE_NONE}
    lines = table_rows(path, as_written=True, **(quoted if is_csv and not has_bars else plain))
    where, header = next(lines, (f"{path}, line 1", []))
    if (
        has_bars
        and len(header) in (2, 3)
        and not {"text", "transcription", "sentence"} & {name.strip().lower() for name in header}
    ):
        lines = chain([(where, header)], lines)
        header = list(LJSPEECH[: len(header)])
        columns = Columns({"audio": "id", "text": header[-1]}, header[1:-1])
    else:
        columns = find(header := check_header(where, header))
    rows = (line for line in lines if any(map(str.strip, line[1])))
    return columns, ((where, dict(zip(header, fields, strict=True))) for where, fields in rows)


def _place(folder: Path, names: Sequence[str]) -> tuple[Path, str]:
    """Return the folder that audio paths start from, and what they lack at their end."""
    places = ((folder / below, suffix) for below in FOLDERS for suffix in ENDINGS)
    exists = (place for place in places if any(os.path.isfile(f"{place[0] / name}{place[1]}") for name in names))
    return next(exists, (folder, ""))


def row_of(where: str, fields: Mapping[str, Any], columns: Mapping[str, str], folder: Path, suffix: str = "") -> Row:
    """Return the row of a record.

    Args:
        where: file and line, for messages.
        fields: of the record.
        columns: names of the fields by what they are.
        folder: that the path of the audio starts from.
        suffix: that the path lacks.

    Raises:
        ValueError: a field is not of its type, no audio is named, or there is no such split.
    """
    values = {field: fields.get(name) for field, name in columns.items()}
    try:
        # of audio Hugging Face has a mapping
        plain = {f: v["path"] if isinstance(v, dict) and "path" in v else v for f, v in values.items()}
        texts = {field: as_text(value, columns[field]) for field, value in plain.items()}
        times_s = {field: as_number(texts[field], columns[field]) for field in TIMES if texts.get(field, "").strip()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    name, text = texts["audio"].strip(), texts["text"]
    if not name:
        raise ValueError(f"{where}: no audio is given; give a path relative to the table, or absolute")
    if ELSEWHERE.match(name) or ("\\" in name and not os.path.exists(folder / name)):
        raise ValueError(
            f"{where}: {name!r} is an address, or a path of Windows; copy the audio here, and give its path"
        )
    texts = composed(texts)  # ids and speakers are compared; a path is as it is written
    split = texts.get("split", "").strip().lower() or None
    if split is not None and split_of(split) is None:
        raise ValueError(f"{where}: there is no split {split!r}; allowed are train, dev… and test…")
    start_s, end_s, duration_s = map(times_s.get, TIMES)
    if "start" in columns and start_s is None and end_s is None:
        duration_s = None  # of the whole file, as of NeMo's manifests
    start_s = start_s or 0.0
    return Row(
        stem=name if suffix else str(Path(name).with_suffix("")),
        audio=folder / f"{os.path.expanduser(name)}{suffix}",  # Path.expanduser raises an error on an unknown user
        text=text,
        where=where,
        speaker=texts.get("speaker", "").strip() or None,
        split=split,
        id=texts.get("id", "").strip() or None,
        start_s=start_s,
        end_s=end_s if end_s is not None or duration_s is None else start_s + duration_s,
        language=texts.get("language", "").strip() or None,
    )
