"""Tables of audio and text: columns, splits, folders of tables, and datasets saved by Hugging Face's library."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from asr.data.manifests.audio import ELSEWHERE
from asr.data.manifests.corpus import Row
from werdict.console import PlainConsole, track
from werdict.files import named_path, read_json
from werdict.text_files import as_number, as_text, check_header, composed, json_objects, read_lines, table_rows

SPLIT_ALIASES = {"val": "dev", "valid": "dev", "validation": "dev", "training": "train", "eval": "test"}
WORDS = {**SPLIT_ALIASES, **{name: name for name in ("train", "dev", "test")}}
KINDS_OF_FILES = {"manifest", "manifests", "metadata", "data", "set", "split", "list"}  # no part of a split's name


def split_of(name: str) -> str | None:
    """Return the split that a name means, ``train``, ``dev…`` or ``test…``; None if it means none."""
    split = SPLIT_ALIASES.get(name, name)
    return split if split == "train" or split.startswith(("dev", "test")) else None


def split_in_name(path: Path) -> str | None:
    """Return the split that a word in the name of a file or folder means; None if there is none.

    ``an4_train_manifest.json`` is train, ``val.csv`` dev, and ``test-other`` and ``cv_test_other.tsv`` test-other.
    """
    words = _words(path)
    place = next((number for number, word in enumerate(words) if word in WORDS), None)
    if place is None:
        return None
    kind, rest = WORDS[words[place]], [word for word in words[place + 1 :] if word not in KINDS_OF_FILES]
    return kind if kind == "train" else "-".join([kind, *rest])


def label_of(path: Path) -> str:
    """Return what the name of a file or folder says beside its split, or the name of its folder."""
    rest = [word for word in _words(path) if word not in WORDS and word not in KINDS_OF_FILES]
    return "-".join(rest) or path.resolve().parent.name


def _words(path: Path) -> list[str]:
    return [word for word in re.split(r"[\W_]+", path.name.partition(".")[0].lower()) if word]


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


SourceOption: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class Part:
    """A file or folder of a source.

    Attributes:
        path: of it.
        split: that all of it is; None: as it says itself.
    """

    path: Path
    split: str | None = None

    @property
    def folder(self) -> Path:
        """The folder itself, or that of the file."""
        return self.path if self.path.is_dir() else self.path.parent


def parts_of(source: SourceOption, option: str = "data.source") -> list[Part]:
    """Return the parts that a user names: a path, a list whose names say splits, or places by their split.

    Each of several test sets has a name of its own.

    Raises:
        ValueError: a key is no split, or two test sets would have one name.
    """
    if isinstance(source, str):
        return [Part(named_path(source))]
    if not isinstance(source, Mapping):
        listed = [Part(path, split_in_name(path)) for path in map(named_path, source)]
        unknown = [part.path for part in listed if part.split is None]
        if unknown and len(unknown) < len(listed):
            raise ValueError(
                f"{option}: the name {unknown[0].name!r} names no split, but others do; "
                "write {train: …, dev: …, test: …}"
            )
        return named_apart(listed, option)
    parts = []
    for name, places in source.items():
        if (split := split_of(str(name))) is None:
            raise ValueError(f"{option}.{name}: there is no split {name!r}; allowed are train, dev… and test…")
        parts += [Part(named_path(path), split) for path in ([places] if isinstance(places, str) else places)]
    return named_apart(parts, option)


def named_apart(parts: Sequence[Part], option: str) -> list[Part]:
    """Return the parts with a name for each test set; parts of other splits are joined."""
    counts = Counter(part.split for part in parts if (part.split or "").startswith("test"))
    named = [Part(part.path, f"test-{label_of(part.path)}") if counts[part.split] > 1 else part for part in parts]
    again = Counter(part.split for part in named if (part.split or "").startswith("test"))
    if twice := [split for split, count in again.items() if count > 1]:
        raise ValueError(f"{option}: two sets would be called {twice[0]}; name them: {{test-a: …, test-b: …}}")
    return named


def table_parts(folder: Path) -> list[Part]:
    """Return the tables of a folder: one for each split, or ``metadata.csv`` here or in the folder of each split."""
    if named := [Part(path, split) for path in _tables(folder) if (split := split_in_name(path))]:
        return named_apart(named, str(folder))
    if tables := _metadata(folder):
        return [Part(path) for path in tables]
    places = sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
    return [Part(path, split) for place in places if (split := split_in_name(place)) for path in _metadata(place)]


def _metadata(folder: Path) -> list[Path]:
    return [path for path in _tables(folder) if path.name.startswith("metadata.")]


def _tables(folder: Path) -> list[Path]:
    names = sorted(os.listdir(folder))
    return [folder / name for name in names if not name.startswith(".") and ending(Path(name)) in TABLES]


INDEX, SPLITS = "state.json", "dataset_dict.json"


def saved_datasets(folder: Path) -> list[tuple[Path, str | None]]:
    """Return the folders of saved data, one for each split, with the name of the split; empty if there is none."""
    if (folder / SPLITS).is_file():
        return [(folder / name, name) for name in read_json(folder / SPLITS)["splits"]]
    return [(folder, None)] if (folder / INDEX).is_file() else []


def arrow_files(folder: Path) -> list[Path]:
    """Return the files of a folder that saves one split."""
    index = read_json(folder / INDEX)
    return [folder / Path(file["filename"]).name for file in index["_data_files"]]


def read_saved(
    folder: Path, split: str | None, user_columns: Mapping[str, str] | None, may_lack: bool, audio_dir: Path | None
) -> list[Row]:
    """Read one split, and print how it was read.

    Args:
        folder: of the split.
        split: name that it is saved under.
        user_columns: columns, by what they are, that the user names.
        may_lack: as of `find_columns`.
        audio_dir: where audio is written that the Arrow files hold; None: nowhere.

    Raises:
        ValueError: pyarrow is missing, a file is malformed, or there is no place for the audio.
    """
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ValueError(
            f"{folder} is saved by datasets, which needs pyarrow: pip install 'werdict[datasets]'"
        ) from error

    def records() -> Iterator[dict[str, Any]]:
        for file in arrow_files(folder):
            try:
                with pyarrow.memory_map(str(file)) as opened, pyarrow.ipc.open_stream(opened) as batches:
                    for batch in batches:
                        yield from batch.to_pylist()
            except (pyarrow.ArrowInvalid, OSError) as error:
                raise ValueError(f"{file}: not Arrow data: {error}") from error

    header = list(next(records(), {}))
    columns = find_columns(str(folder), header, user_columns, may_lack)
    rows = []
    for number, fields in enumerate(track(records(), f"reading {folder.name}", transient=True), start=1):
        audio, stem = fields[columns.names["audio"]], f"{split or 'all'}-{number:06}"
        if isinstance(audio, Mapping) and audio.get("bytes"):
            if audio_dir is None:
                raise ValueError(
                    f"{folder} contains the audio itself: to decode it, save it to files and list them in a table"
                )
            path = audio_dir / f"{stem}{Path(audio.get('path') or 'x.wav').suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(audio["bytes"])
            fields[columns.names["audio"]] = str(path)
        row = row_of(f"{folder}, row {number}", fields, columns.names, folder)
        rows.append(replace(row, stem=stem, split=row.split or split))
    console.print_line(f"{folder}: saved data of {len(rows)} rows: {columns}")
    return rows
