"""Layouts of corpora: tables, data saved by Hugging Face's library, folders of Kaldi, and transcripts beside audio."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from asr.data.manifests.audio import ELSEWHERE
from asr.data.manifests.audio_files import ENDINGS
from asr.data.manifests.corpus import ManifestRow
from werdict import text_files
from werdict.console import PlainConsole, track
from werdict.files import named_path, read_json

SPLIT_ALIASES = {"val": "dev", "valid": "dev", "validation": "dev", "training": "train", "eval": "test"}
WORDS = {**SPLIT_ALIASES, **{name: name for name in ("train", "dev", "test")}}
KINDS_OF_FILES = {"manifest", "manifests", "metadata", "data", "set", "split", "list"}  # no part of a split's name
# columns of tables: of several that a table has, the first counts
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
OPTIONAL = [field for field in ALIASES if field not in REQUIRED]
TIMES = ("start", "end", "duration")
TABLES = (".tsv", ".csv", ".json", ".jsonl")
JSON = (".json", ".jsonl")
# where the audio of a table may lie, and the ending that its names may lack: Common Voice, LJSpeech
FOLDERS, SUFFIXES = ("", "clips", "wavs", "wav", "audio"), ("", ".wav", ".flac", ".mp3")
NUM_LOOKED_FOR = 20  # first rows, some of whose audio may be missing
LJSPEECH = ("id", "text", "normalized_text")
Record = tuple[str, Mapping[str, Any]]  # where it stands, and values by column
console = PlainConsole()
SourceOption: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[str]]
INDEX, SPLITS = "state.json", "dataset_dict.json"  # of data saved by Hugging Face's library
KALDI_FILES = ("wav.scp", "segments", "text", "utt2spk")
IN_ARCHIVE = re.compile(r".*:\d+(\[.*\])?")  # file.ark:123
# run in a Kaldi folder: saves what the commands of wav.scp print
CONVERT = (
    'mkdir -p wav && while read -r id command; do bash -c "${command%|}" </dev/null >"wav/$id.wav" && '
    'echo "$id $PWD/wav/$id.wav"; done <wav.scp >wav.new && mv wav.new wav.scp'
)
LISTS = (".trans.txt", "PROMPTS")  # LibriSpeech, VoxForge: an id and its transcript per line
BESIDE = ("", "../wav", "../flac")  # where the audio of a list lies, from its folder
BESIDE_AUDIO = (".normalized.txt", ".txt", ".lab", ".TextGrid")
# of TextGrids, best first, and what is no transcript; beside either may stand a speaker, as in "anna - words"
TIERS = (
    *("utterances", "utterance", "sentences", "sentence", "transcription", "transcript", "text", "trn"),
    *("words", "word", "ort-mau", "ort"),
)
OTHER_TIERS = (
    *("phones", "phone", "phonemes", "phoneme", "kan-mau", "kan", "mau", "syllables", "syllable", "ipa"),
    *("comments", "comment", "notes", "note", "noise", "gloss", "translation", "tones", "breaks", "pos"),
)
KIND = "|".join(sorted((*TIERS, *OTHER_TIERS), key=len, reverse=True))
TIER_NAME = re.compile(rf"(?:(.+?) *[-_:./@ ] *)??({KIND})(?: *[-_:./@ ] *(.+))?", re.IGNORECASE)
PAUSES = {"", "sp", "sil", "spn", "pau", "<p:>", "<p>", "<sp>", "<sil>", "<spn>", "<eps>", "<usb>", "<nib>"}  # labels
TOKENS = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)(-?\d+(?:\.\d+)?(?:[eE]-?\d+)?)(?!\S)')
# times and a label: of HTK, whose scores may follow, and of Audacity
LABELS = {
    ".lab": re.compile(r"\d+\s+\d+\s+(\S+).*"),
    ".txt": re.compile(r"\d+\.\d+\t\d+\.\d+(?:\t(.*))?"),
}
NUM_TIERS = 5  # that are named


def split_of(name: str) -> str | None:
    """Return the split that a name means, ``train``, ``dev…`` or ``test…``; None if it means none."""
    split = SPLIT_ALIASES.get(name, name)
    return split if split == "train" or split.startswith(("dev", "test")) else None


def split_in_name(path: Path) -> str | None:
    """Return the split that a word in the name of a file or folder means; None if there is none.

    ``an4_train_manifest.json`` is train, ``val.csv`` dev, and ``test-other`` and ``cv_test_other.tsv`` test-other.
    """
    words = _words_of_name(path)
    place = next((number for number, word in enumerate(words) if word in WORDS), None)
    if place is None:
        return None
    kind, rest = WORDS[words[place]], [word for word in words[place + 1 :] if word not in KINDS_OF_FILES]
    return kind if kind == "train" else "-".join([kind, *rest])


def split_of_folders(path: Path) -> str | None:
    """Return the split that the name of a folder in a path means, without its last part; None if there is none."""
    return next((split for name in path.parts[:-1] if (split := split_in_name(Path(name)))), None)


def label_of(path: Path) -> str:
    """Return what the name of a file or folder says beside its split, or the name of its folder."""
    rest = [word for word in _words_of_name(path) if word not in WORDS and word not in KINDS_OF_FILES]
    return "-".join(rest) or path.resolve().parent.name


def _words_of_name(path: Path) -> list[str]:
    return [word for word in re.split(r"[\W_]+", path.name.partition(".")[0].lower()) if word]


@dataclass(frozen=True)
class SourcePart:
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


def parts_of(source: SourceOption, option: str = "data.source") -> list[SourcePart]:
    """Return the parts that a user names: a path, a list whose names say splits, or places by their split.

    Each of several test sets has a name of its own.

    Raises:
        ValueError: a key is no split, or two test sets would have one name.
    """
    if isinstance(source, str):
        return [SourcePart(named_path(source))]
    if not isinstance(source, Mapping):
        listed = [SourcePart(path, split_in_name(path)) for path in map(named_path, source)]
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
        parts += [SourcePart(named_path(path), split) for path in ([places] if isinstance(places, str) else places)]
    return named_apart(parts, option)


def named_apart(parts: Sequence[SourcePart], option: str) -> list[SourcePart]:
    """Return the parts with a name for each test set; parts of other splits are joined."""
    counts = Counter(part.split for part in parts if (part.split or "").startswith("test"))
    named = [SourcePart(part.path, f"test-{label_of(part.path)}") if counts[part.split] > 1 else part for part in parts]
    again = Counter(part.split for part in named if (part.split or "").startswith("test"))
    if twice := [split for split, count in again.items() if count > 1]:
        raise ValueError(f"{option}: two sets would be called {twice[0]}; name them: {{test-a: …, test-b: …}}")
    return named


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

    @classmethod
    def find(
        cls, where: str, header: Sequence[str], user_columns: Mapping[str, str] | None = None, may_lack: bool = False
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
                f"{where}: no column was recognized as {' or '.join(missing)}; there are {', '.join(header)}. Give "
                f"their names: data.columns={{{', '.join(f'{field}: COLUMN' for field in missing)}}}, or in the "
                f"header: {', '.join(REQUIRED)}, and optionally {', '.join(OPTIONAL)}"
            )
        return cls(names, [name for name in header if name not in names.values()])

    def row(self, where: str, fields: Mapping[str, Any], folder: Path, suffix: str = "") -> ManifestRow:
        """Return the row of a record.

        Args:
            where: file and line, for messages.
            fields: of the record.
            folder: that the path of the audio starts from.
            suffix: that the path lacks.

        Raises:
            ValueError: a field is not of its type, no audio is named, or there is no such split.
        """
        values = {field: fields.get(name) for field, name in self.names.items()}
        try:
            # of audio Hugging Face has a mapping
            plain = {f: v["path"] if isinstance(v, dict) and "path" in v else v for f, v in values.items()}
            texts = {field: text_files.as_text(value, self.names[field]) for field, value in plain.items()}
            times_s = {
                field: text_files.as_number(texts[field], self.names[field])
                for field in TIMES
                if texts.get(field, "").strip()
            }
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        name, text = texts["audio"].strip(), texts["text"]
        if not name:
            raise ValueError(f"{where}: no audio is given; give a path relative to the table, or absolute")
        if ELSEWHERE.match(name) or ("\\" in name and not os.path.exists(folder / name)):
            raise ValueError(
                f"{where}: {name!r} is an address, or a path of Windows; copy the audio here, and give its path"
            )
        # ids and speakers are compared; a path is as it is written
        known = {field: value.strip() or None for field, value in text_files.composed(texts).items()}
        split = (known.get("split") or "").lower() or None
        if split is not None and split_of(split) is None:
            raise ValueError(f"{where}: there is no split {split!r}; allowed are train, dev… and test…")
        start_s, end_s, duration_s = map(times_s.get, TIMES)
        if "start" in self.names and start_s is None and end_s is None:
            duration_s = None  # of the whole file, as of NeMo's manifests
        start_s = start_s or 0.0
        return ManifestRow(
            stem=name if suffix else str(Path(name).with_suffix("")),
            audio=folder / f"{os.path.expanduser(name)}{suffix}",  # Path.expanduser raises an error on an unknown user
            text=text,
            where=where,
            speaker=known.get("speaker"),
            split=split,
            id=known.get("id"),
            start_s=start_s,
            end_s=end_s if end_s is not None or duration_s is None else start_s + duration_s,
            language=known.get("language"),
        )


def ending(path: Path) -> str:
    """Return the ending of a file that says its format, without that of compression."""
    return Path(path.name.removesuffix(".gz")).suffix


def is_lhotse(path: Path) -> bool:
    """Return whether the first object of a file of JSON lines is a cut of lhotse."""
    _, first = next(text_files.json_objects(path), (1, {}))
    return "type" in first or "recording" in first or "supervisions" in first


def read_table(path: Path, user_columns: Mapping[str, str] | None = None, may_lack: bool = False) -> list[ManifestRow]:
    """Read a table, and print how it was read.

    A TSV has no quoting, a CSV has quotation marks; both have a header, unless a CSV has two or three fields between
    bars, as LJSpeech's. JSON has an object per line, or a list. Audio paths are relative to the table, or to a folder
    of ``FOLDERS`` beside it. UTF-8.

    Args:
        path: of the table.
        user_columns: columns, by what they are, that the user names.
        may_lack: as of `Columns.find`.

    Raises:
        ValueError: the table is malformed; the message names the file and the line.
    """
    columns, records = _records(path, lambda header: Columns.find(f"{path}, line 1", header, user_columns, may_lack))
    numbered = list(track(records, f"reading {path.name}", transient=True))
    names = [fields.get(columns.names["audio"]) for _, fields in numbered[:NUM_LOOKED_FOR]]
    folder, suffix = _place(path.parent, [str(name).strip() for name in names if name])
    rows = [columns.row(where, fields, folder, suffix) for where, fields in numbered]
    place = "" if folder == path.parent else f" (in {folder.name}/)"
    console.print_line(f"{path}: a table of {len(rows)} rows{place}: {columns}")
    return rows


def _records(path: Path, find: Callable[[Sequence[str]], Columns]) -> tuple[Columns, Iterable[Record]]:
    if ending(path) in JSON:
        objects = [
            (f"{path}, line {number}", fields) for number, fields in text_files.json_objects(path, as_written=True)
        ]
        # not the first object alone: another may be the first part of a file
        return find([*dict.fromkeys(name for _, fields in objects for name in fields)]), objects
    first = next(text_files.read_lines(path), "")
    is_csv = ending(path) == ".csv"
    has_bars = is_csv and "|" in first and not {",", ";"} & {*first.partition("|")[0]}
    # spreadsheets separate by semicolons where numbers have a decimal comma
    quoted = {"delimiter": max(",;\t", key=first.count)}
    plain = {"delimiter": "|" if has_bars else "\t", "quoting": csv.QUOTE_NONE}
    lines = text_files.table_rows(path, as_written=True, **(quoted if is_csv and not has_bars else plain))
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
        columns = find(header := text_files.check_header(where, header))
    rows = (line for line in lines if any(map(str.strip, line[1])))
    return columns, ((where, dict(zip(header, fields, strict=True))) for where, fields in rows)


def _place(folder: Path, names: Sequence[str]) -> tuple[Path, str]:
    """Return the folder that audio paths start from, and what they lack at their end."""
    places = ((folder / below, suffix) for below in FOLDERS for suffix in SUFFIXES)
    exists = (place for place in places if any(os.path.isfile(f"{place[0] / name}{place[1]}") for name in names))
    return next(exists, (folder, ""))


def table_parts(folder: Path) -> list[SourcePart]:
    """Return the tables of a folder: one for each split, or ``metadata.csv`` here or in the folder of each split."""
    if named := [SourcePart(path, split) for path in _tables(folder) if (split := split_in_name(path))]:
        return named_apart(named, str(folder))
    if tables := _metadata(folder):
        return [SourcePart(path) for path in tables]
    places = sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
    return [SourcePart(path, split) for place in places if (split := split_in_name(place)) for path in _metadata(place)]


def _metadata(folder: Path) -> list[Path]:
    return [path for path in _tables(folder) if path.name.startswith("metadata.")]


def _tables(folder: Path) -> list[Path]:
    names = sorted(os.listdir(folder))
    return [folder / name for name in names if not name.startswith(".") and ending(Path(name)) in TABLES]


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
) -> list[ManifestRow]:
    """Read one split, and print how it was read.

    Args:
        folder: of the split.
        split: name that it is saved under.
        user_columns: columns, by what they are, that the user names.
        may_lack: as of `Columns.find`.
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
    columns = Columns.find(str(folder), header, user_columns, may_lack)
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
        row = columns.row(f"{folder}, row {number}", fields, folder)
        rows.append(replace(row, stem=stem, split=row.split or split))
    console.print_line(f"{folder}: saved data of {len(rows)} rows: {columns}")
    return rows


def is_kaldi(folder: Path) -> bool:
    """Return whether a folder is one of Kaldi."""
    return (folder / "wav.scp").is_file()


def read_kaldi(folder: Path) -> tuple[list[ManifestRow], list[tuple[str, str]]]:
    """Read a folder of Kaldi; relative paths in ``wav.scp`` start, as in Kaldi, at the current folder.

    Without ``segments`` each recording is an utterance; its fifth field may be a channel, else the first is used.

    Returns:
        The utterances, and (id, reason) of those that lack something.

    Raises:
        ValueError: a line is malformed, or repeats a name, or names no file; the message names file and line.
    """
    files = {name: (where, _file(where, place)) for name, (where, place) in _table(folder / "wav.scp").items()}
    if not (folder / "text").is_file():
        raise ValueError(f"{folder} has no file text beside wav.scp, with a name and a transcript on each line")
    texts, speakers, segments = (_table(folder / name) for name in ("text", "utt2spk", "segments"))
    rows, dropped = [], []
    for id, (where, place) in (segments or {name: (where, name) for name, (where, _) in files.items()}).items():
        recording, start_s, end_s, channel = _part(where, place) if segments else (place, 0.0, None, None)
        if id not in texts:
            dropped.append((id, f"missing transcript: {folder / 'text'} has no line for it"))
        elif recording not in files:
            dropped.append((id, f"missing recording: {recording}, in {where}"))
        else:
            speaker = speakers[id][1] or None if id in speakers else None
            audio = Path(files[recording][1])
            rows.append(
                ManifestRow(recording, audio, texts[id][1], where, speaker, None, id, start_s, end_s, channel=channel)
            )
    ids = {row.id for row in rows} | {id for id, _ in dropped}
    dropped += [(id, f"missing recording: only {where} has it") for id, (where, _) in texts.items() if id not in ids]
    return rows, dropped


def _table(path: Path) -> dict[str, tuple[str, str]]:
    """Return the rest of each line, and where it stands, by the name at its start; nothing if there is no such file."""
    entries: dict[str, tuple[str, str]] = {}
    for where, line in text_files.numbered_lines(path) if path.is_file() else ():
        name, *rest = line.split(maxsplit=1)
        if entries.setdefault(name, entry := (where, "".join(rest).strip())) != entry:
            raise ValueError(f"{where}: {name!r} is in {entries[name][0]} too; keep one")
    return entries


def _file(where: str, place: str) -> str:
    if "|" in place:
        raise ValueError(
            f"{where}: {place!r} is a command, and commands are not run. If you trust all of them, save their output "
            f"to files: run this line in that folder:\n{CONVERT}"
        )
    if not place or IN_ARCHIVE.fullmatch(place) or ELSEWHERE.match(place):
        raise ValueError(
            f"{where}: {place!r} is not an audio file here; copy it to this machine, or write archives to files, for "
            "example with Kaldi's wav-copy"
        )
    return os.path.abspath(os.path.expanduser(place))


def _part(where: str, place: str) -> tuple[str, float, float | None, int | None]:
    """Return recording, start, end and channel of a line of ``segments``; an end below 0 is that of the recording."""
    try:
        recording, *times = place.split()
        start_s, end_s, *channel = map(float, times)
        (number,) = map(int, channel) if channel else (None,)
    except ValueError:
        raise ValueError(f"{where}: expected a recording, start and end in seconds, and optionally a channel") from None
    return recording, start_s, None if end_s < 0 else end_s, number


def transcript_files(folder: Path) -> list[Path]:
    """Return the files of transcripts below a folder: lists, or else those that lie beside their audio."""
    files = list(text_files.visible_files(folder))
    if lists := [file for file in files if file.name.endswith(LISTS)]:
        return lists
    stems = {str(file)[: -len(file.suffix)] for file in files if file.suffix.lower() in ENDINGS}
    texts = [file for file in files if file.name.endswith(BESIDE_AUDIO)]
    return [file for file in texts if str(file).removesuffix(_kind(file)) in stems]


def read_transcripts(folder: Path, files: Sequence[Path]) -> list[ManifestRow]:
    """Read the transcripts of a tree, and print how they were read.

    A folder below ``folder`` whose name holds that of a split is that split. Of several transcripts of one file the
    first kind of ``BESIDE_AUDIO`` counts.

    Raises:
        ValueError: a file is malformed.
    """
    tiers: dict[str, None] = {}
    rows = list(_of_lists(folder, files) if files[0].name.endswith(LISTS) else _beside(folder, files, tiers))
    kinds = sorted(set(map(_kind, files)))
    named = "speakers from folders" if any(row.speaker for row in rows) else "speakers unknown"
    named += f", tiers {', '.join(map(repr, [*tiers][:NUM_TIERS]))}" if tiers else ""
    console.print_line(f"{folder}: {len(rows)} utterances, text from *{', *'.join(kinds)} beside the audio, {named}")
    return rows


def _of_lists(folder: Path, files: Iterable[Path]) -> Iterator[ManifestRow]:
    for file in track(list(files), f"reading {folder.name}", transient=True):
        places = [os.path.normpath(file.parent / place) for place in BESIDE]
        paths = [Path(place, name) for place in places if os.path.isdir(place) for name in _audio(place)]
        audio = {text_files.composed(path.stem): path for path in paths}
        parents = [parent.name for parent in file.relative_to(folder).parents]
        other = next(iter(audio.values()), file.with_name("x.wav"))  # one that is missing lies beside others
        for where, line in text_files.numbered_lines(file):
            name, _, text = line.strip().partition(" ")
            name = name.rpartition("/")[2]
            # LibriSpeech begins ids with the speaker, VoxForge has a folder for each
            first = name.partition("-")[0]
            speaker = first if first in parents else file.parents[1].name if file.name == "PROMPTS" else None
            place = audio.get(name, other.with_name(f"{name}{other.suffix}"))
            yield _row(folder, place, text.strip(), where, speaker)


def _audio(folder: str) -> list[str]:
    return [name for name in sorted(os.listdir(folder)) if Path(name).suffix.lower() in ENDINGS]


def _beside(folder: Path, files: Iterable[Path], tiers: dict[str, None]) -> Iterator[ManifestRow]:
    best: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: BESIDE_AUDIO.index(_kind(file))):
        best.setdefault(str(file).removesuffix(_kind(file)), file)
    audio: dict[str, Path] = {}
    for place in {file.parent for file in best.values()}:
        # x.flac before x.wav, and x.wav before x.WAV
        paths = map(place.joinpath, _audio(str(place)))
        for path in sorted(paths, key=lambda path: (ENDINGS.index(path.suffix.lower()), path.suffix.swapcase())):
            audio.setdefault(str(path.with_suffix("")), path)
    for stem, file in track(sorted(best.items()), f"reading {folder.name}", transient=True):
        yield _row(folder, audio[stem], _transcript(file, tiers), str(file), None)


def _kind(file: Path) -> str:
    return next(kind for kind in (*LISTS, *BESIDE_AUDIO) if file.name.endswith(kind))


def _row(folder: Path, audio: Path, text: str, where: str, speaker: str | None) -> ManifestRow:
    inside = audio.relative_to(folder)
    return ManifestRow(str(inside.with_suffix("")), audio, text, where, speaker, split_of_folders(inside))


def _transcript(file: Path, tiers: dict[str, None]) -> str:
    """Return the words of a file of one transcript; add the names of its tiers."""
    lines = [line.strip() for _, line in text_files.numbered_lines(file)]
    if file.name.endswith(".TextGrid"):
        return _words_of_grid(file, "\n".join(lines), tiers)
    labels = [LABELS[file.suffix].fullmatch(line) for line in lines]
    are_labels = labels and all(labels)
    return _words(label[1] or "" for label in labels if label) if are_labels else " ".join(" ".join(lines).split())


def _words(labels: Iterable[str]) -> str:
    """Return the words of labels, without pauses."""
    return " ".join(" ".join(label for label in labels if label.strip().lower() not in PAUSES).split())


def _words_of_grid(file: Path, text: str, read: dict[str, None]) -> str:
    """Return the labels of the tier of utterances or words of a TextGrid of Praat, long or short."""
    # what is no free-standing number or quoted string is a comment, so that both forms have the same tokens
    tokens = iter([number or label.replace('""', '"') for label, number in TOKENS.findall(text)])
    tiers: list[tuple[str, list[str]]] = []
    try:
        for kind in tokens:
            if kind in ("IntervalTier", "TextTier"):
                name, _, _, size = next(tokens), next(tokens), next(tokens), int(next(tokens))
                step = 3 if kind == "IntervalTier" else 2
                labels = [[next(tokens) for _ in range(step)][-1] for _ in range(size)]
                if kind == "IntervalTier":
                    tiers.append((name.strip(), labels))
    except (StopIteration, ValueError) as error:
        raise ValueError(f"{file}: this is not a Praat TextGrid") from error
    name, labels = _tier_of_words(file, tiers)
    read[name] = None
    return _words(labels)


def _tier_of_words(file: Path, tiers: list[tuple[str, list[str]]]) -> tuple[str, list[str]]:
    """Return the best tier of the one speaker of a TextGrid.

    Raises:
        ValueError: there is none; or there are several speakers, or several tiers of a kind, or of none that is known.
    """
    found = [(TIER_NAME.fullmatch(tier[0]), tier) for tier in tiers]
    usable = [(name, tier) for name, tier in found if name is None or name[2].lower() in TIERS]
    usable = [(name, tier) for name, tier in usable if _words(tier[1])] or usable[:1]
    by_rank: dict[int, list[tuple[str, list[str]]]] = defaultdict(list)
    for name, tier in usable:
        by_rank[len(TIERS) if name is None else TIERS.index(name[2].lower())].append(tier)
    best = by_rank[min(by_rank)] if by_rank else []
    speakers = {(name[1] or name[3] or "").lower() for name, _ in usable if name is not None}
    if len(best) != 1 or len(speakers) > 1:
        names = ", ".join(repr(name) for name, _ in ([tier for _, tier in usable] or tiers)) or "none"
        raise ValueError(
            f"{file}: one tier of words, of one speaker, is needed, and there are {names}; leave one and call it "
            "'words', or write a table with columns audio, start, end, text and speaker"
        )
    return best[0]
