"""Imports tables, manifests of lhotse or NeMo, folders of Kaldi or of transcripts, with any splits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lhotse import Features, Recording, SupervisionSegment

from asr.data.manifests import layouts
from asr.data.manifests.corpus import Dropped, ManifestRow, Manifests, RecordingOrFeatures, manifests_of_rows
from asr.data.manifests.layouts import SourceOption, SourcePart, split_of
from asr.data.manifests.lhotse_manifests import TARS, find_shards, read_cuts, read_items, read_shards
from werdict.console import PlainConsole
from werdict.normalization import is_one_line

UNSPLIT = "all"
SUFFIXES = (".jsonl", ".jsonl.gz")
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
NO_TABLES = (".srt", ".vtt", ".stm", ".ctm", ".rttm", ".trn", ".eaf", ".textgrid", ".lab")
KINDS = ("recordings", "features", "supervisions", "cuts")
NAMED = re.compile(rf"(?:.*[_-])?({'|'.join(KINDS)})(?:[_-](.+))?")  # cuts_train, librispeech_cuts_dev-clean
LAYOUTS = (
    "Supported are tables named after splits (train.tsv, dev.csv, test.json, …) or metadata.csv or .jsonl, x.txt, "
    "x.lab or x.TextGrid beside x.wav, *.trans.txt, wav.scp of Kaldi, and recordings*.jsonl(.gz) with "
    "supervisions*.jsonl(.gz), or cuts*.jsonl(.gz), of lhotse. If a table has another name, give the file itself."
)
TOLERATED_SEGMENT_S = 1e-3  # what lhotse's validation allows
OVERSHOOT_S = 0.5  # times are rounded; what Kaldi's scripts allow

console = PlainConsole()


@dataclass
class ImportedManifests:
    """Manifests of a source, in which every supervision lies within a recording.

    Attributes:
        splits: by name; ``all`` for manifests without a split.
        dropped: items that cannot be used. The audio of lhotse manifests is not checked here.
        notes: what was ignored or renamed.
        num_trimmed: supervisions that ended a little after their recording.
    """

    splits: dict[str, Manifests] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_trimmed: int = 0

    def add(self, split: str, manifests: Manifests, dropped: Iterable[Dropped] = (), join: bool = False) -> None:
        """Add a split: supervisions that lie within a recording, and these recordings; list the other supervisions.

        Args:
            split: its name.
            manifests: of it.
            dropped: what is left out already.
            join: add to what there is of this split.

        Raises:
            ValueError: there is such a split already.
        """
        former = self.splits.get(split)
        if former and not join:
            raise ValueError(f"two manifests are of split {split!r}; keep one")
        sources = manifests.sources()
        segments = []
        self.dropped += dropped
        for segment in manifests.supervisions:
            source = sources.get(segment.recording_id)
            within = within_recording(segment, source)
            if isinstance(within, str):
                audio = str(source.sources[0].source) if isinstance(source, Recording) else None
                self.dropped.append(Dropped(split, segment.id, within, audio))
            else:
                segments.append(within)
                self.num_trimmed += within is not segment
        used = {segment.recording_id for segment in segments}
        merged = {name: source for name, source in sources.items() if name in used}
        if former:
            if both := [name for name, source in former.sources().items() if merged.setdefault(name, source) != source]:
                raise ValueError(f"recording {both[0]!r} is described twice, differently, in split {split!r}")
            segments = [*former.supervisions, *segments]
        self.splits[split] = Manifests.of(merged.values(), segments)

    def trimmed_note(self) -> list[str]:
        """Return the note on utterances that were trimmed, if there are any."""
        note = f"utterances that ended up to {OVERSHOOT_S} s after their recording, trimmed to it: {self.num_trimmed}"
        return [note] if self.num_trimmed else []

    def split_named(self, path: Path, name: str) -> str:
        """Return the split that a table, or the name of a file or folder, means; note if it was called otherwise."""
        split = split_of(name)
        if split is None:
            raise ValueError(
                f"{path}: there is no split {name!r}; rename it: train, or a name that begins with dev or test"
            )
        note = f"split {name!r} was read as {split!r}"
        if name in layouts.SPLIT_ALIASES and note not in self.notes:
            self.notes.append(note)
        return split


def within_recording(segment: SupervisionSegment, source: RecordingOrFeatures | None) -> SupervisionSegment | str:
    """Return a supervised part of a recording, or of its features, or why it cannot be used.

    It ends with the recording if it ended by at most ``OVERSHOOT_S`` later.
    """
    if source is None:
        return f"missing recording: {segment.recording_id}"
    first_s = source.start if isinstance(source, Features) else 0.0
    last_s = first_s + source.duration
    if TOLERATED_SEGMENT_S < segment.end - last_s <= OVERSHOOT_S and segment.start < last_s:
        segment = replace(segment, duration=last_s - segment.start)
    inside = first_s - TOLERATED_SEGMENT_S <= segment.start and first_s < segment.end <= last_s + TOLERATED_SEGMENT_S
    if not inside or segment.duration <= 0:
        return f"outside its recording: {segment.start} to {segment.end} s of {source.duration} s"
    channels = segment.channel if isinstance(segment.channel, list) else [segment.channel]
    # lhotse makes cuts of channel 0 from features without channels
    present = source.channel_ids if isinstance(source, Recording) else source.channels or 0
    present = present if isinstance(present, list) else [present]
    if not set(channels) <= set(present):
        return f"missing channel: {segment.channel}, the recording has {present}"
    return segment


def import_manifests(
    source: SourceOption | Path,
    option: str = "data.source",
    num_jobs: int = 1,
    columns: Mapping[str, str] | None = None,
    audio_dir: Path | None = None,
) -> ImportedManifests:
    """Read tables, manifests of cuts or of NeMo, or folders of manifests, of shards, of Kaldi, or with transcripts.

    In a folder ``recordings_train.jsonl.gz``, or ``features_train.jsonl.gz`` without audio, belongs to
    ``supervisions_train.jsonl.gz``; the split follows the kind, and the name of a corpus may stand before it, as in
    ``librispeech_cuts_dev-clean.jsonl.gz``. Only lhotse's jsonl is read, because its other formats may hold code.
    Folders of Shar or of Kaldi may lie in a folder together, each with the name of its split.

    Args:
        source: a path, several whose names say their splits, or paths by their split.
        option: that names it, for messages.
        num_jobs: processes that read the headers of audio.
        columns: of tables, by what they are, that the user names; a manifest to decode may have others.
        audio_dir: where audio is written that is not in files.

    Raises:
        ValueError: there are no manifests, or they are malformed, or would do more than read files.
    """
    imported = ImportedManifests()
    parts = [SourcePart(source)] if isinstance(source, Path) else layouts.parts_of(source, option)
    for part in parts:
        if not part.path.exists():
            raise ValueError(f"{option}: there is no file or folder {str(part.path)!r}; give an existing path")
    reader = _Reader(imported, num_jobs, columns, option != "data.source", audio_dir, [])
    reader.read(parts)
    name = str(source) if len(parts) == 1 else option
    _check_ids(name, imported)
    imported.notes += imported.trimmed_note()
    if several := sum(r.num_channels > 1 for manifests in imported.splits.values() for r in manifests.recordings):
        imported.notes.append(
            f"recordings with several channels: {several}; the channel of the supervision is used, or the first that "
            "is not silent if it names several or none"
        )
    return imported


@dataclass
class _Reader:
    """Reads the parts of a source; rows of tables are kept until all are read, so that no two files share an id."""

    imported: ImportedManifests
    num_jobs: int
    columns: Mapping[str, str] | None
    may_lack_columns: bool
    audio_dir: Path | None
    rows: list[tuple[str, ManifestRow]]

    def read(self, parts: Sequence[SourcePart]) -> None:
        start = Path(os.path.commonpath([part.folder.absolute() for part in parts]))  # from which ids start
        for part in parts:
            self._part(part, start)
        for split, manifests in manifests_of_rows(self.rows, self.num_jobs).items():
            self.imported.add(split, *manifests, join=True)

    def _part(self, part: SourcePart, start: Path) -> None:
        path = part.path
        if path.is_dir():
            self._folder(part, start)
        elif path.name.endswith(ARCHIVES):
            raise ValueError(f"{path} is an archive; unpack it, and name the folder, or the table in it")
        elif path.suffix.lower() in NO_TABLES:
            raise ValueError(
                f"{path} is no table; write one with columns audio, start, end, text and speaker. {LAYOUTS}"
            )
        elif layouts.ending(path) in layouts.JSON and layouts.is_lhotse(path):
            split = part.split or self._split_in_name(path) or UNSPLIT
            self._add(path, "cuts of lhotse", split, *read_cuts(path, split))
        else:
            if layouts.ending(path) in layouts.JSON:
                part = replace(part, split=part.split or self._split_in_name(path))
            self._rows(layouts.read_table(path, self.columns, self.may_lack_columns), part, start)

    def _rows(self, rows: Iterable[ManifestRow], part: SourcePart, start: Path) -> None:
        """Keep the rows of a table or tree; their names start from the folder that all parts lie in."""
        below = os.path.relpath(part.folder.absolute(), start)
        of_folders = part.path.name.startswith("metadata.")  # of Hugging Face: train/a.wav is of train
        for row in rows:
            named = row.split or (layouts.split_of_folders(Path(row.stem)) if of_folders else None)
            split = self.imported.split_named(part.path, named) if named else part.split or UNSPLIT
            if named and part.split and split != part.split:
                raise ValueError(
                    f"{row.where}: its split is {named!r}, but its file is given as {part.split!r}; keep one"
                )
            stem = row.stem if below == "." or os.path.isabs(row.stem) else os.path.join(below, row.stem)
            self.rows.append((split, replace(row, stem=stem)))

    def _folder(self, part: SourcePart, start: Path) -> None:
        folder, join = part.path, part.split is not None
        if places := _shar_or_kaldi(folder):
            _refuse_several(part, places)
            for place in places:
                split = part.split or (UNSPLIT if place == folder else self.imported.split_named(place, place.name))
                if shards := find_shards(place):
                    self._add(place, "shards of lhotse", split, *read_shards(shards, split), join=join)
                    continue
                rows, dropped = layouts.read_kaldi(place)
                self.rows += [(split, row) for row in rows]
                self.imported.dropped += [Dropped(split, id, reason) for id, reason in dropped]
                console.print_line(f"{place}: a folder of Kaldi, {len(rows) + len(dropped)} utterances")
        elif _manifests_in(folder):
            self._manifests(part, join)
        elif saved := layouts.saved_datasets(folder):
            _refuse_several(part, saved)
            for place, name in saved:
                table_rows = layouts.read_saved(place, name, self.columns, self.may_lack_columns, self.audio_dir)
                self._rows(table_rows, SourcePart(folder, part.split), folder.absolute())
        elif tables := layouts.table_parts(folder):
            _refuse_several(part, tables)
            if ignored := sorted(set(folder.glob("*.[tc]sv")) - {table.path for table in tables}):
                console.print_line(f"{folder}: not read: {', '.join(path.name for path in ignored)}")
            for table in tables:
                self._part(SourcePart(table.path, part.split or table.split), start)
        elif files := layouts.transcript_files(folder):
            self._rows(layouts.read_transcripts(folder, files), part, start)
        else:
            raise ValueError(f"{folder}: nothing in it can be read as a corpus. {LAYOUTS}")

    def _manifests(self, part: SourcePart, join: bool) -> None:
        folder = part.path
        files: dict[str, dict[str | None, Path]] = {kind: {} for kind in KINDS}
        for file in _manifests_in(folder):
            kind, name = NAMED.fullmatch(_stem(file)).groups()  # type: ignore[union-attr]
            files[kind][name] = file
        kind = "features" if files["features"] and not files["recordings"] else "recordings"
        sources, supervisions, cuts = files[kind], files["supervisions"], files["cuts"]
        if lonely := sources.keys() ^ supervisions.keys():
            name = min(lonely, key=str) or UNSPLIT
            raise ValueError(f"{folder}: split {name!r} has {kind} or supervisions, but not both")
        _refuse_several(part, list(sources or cuts))
        for name, file in (sources or cuts).items():
            split = part.split or (UNSPLIT if name is None else self.imported.split_named(file, name))
            if sources:
                items = read_items(file, Recording if kind == "recordings" else Features)
                manifests = Manifests.of(items, read_items(supervisions[name], SupervisionSegment))
                self._add(file, f"{kind} of lhotse", split, manifests, join=join)
            else:
                self._add(file, "cuts of lhotse", split, *read_cuts(file, split), join=join)

    def _add(
        self,
        path: Path,
        kind: str,
        split: str,
        manifests: Manifests,
        dropped: Sequence[Dropped] = (),
        join: bool = True,
    ) -> None:
        """Add a split, and say what it was read from."""
        self.imported.add(split, manifests, dropped, join)
        console.print_line(f"{path}: {kind}, {len(manifests.supervisions) + len(dropped)} utterances")

    def _split_in_name(self, path: Path) -> str | None:
        match = NAMED.fullmatch(_stem(path)) or re.fullmatch(r"([^_-]*)[_-](.+)", _stem(path))
        name = match[2] if match else None
        return self.imported.split_named(path, name) if name and split_of(name) else None


def _shar_or_kaldi(folder: Path) -> list[Path]:
    return _places_in(folder, find_shards) or _places_in(folder, layouts.is_kaldi)


def _refuse_several(part: SourcePart, places: Sequence[object]) -> None:
    if part.split is not None and len(places) > 1:
        raise ValueError(f"{part.path}: it is given as {part.split!r}, but has its own splits; give each of them")


def _places_in(folder: Path, is_place: Callable[[Path], object]) -> list[Path]:
    """Return the folder if it is such a place, or else the folders in it that are, one for each split."""
    if is_place(folder):
        return [folder]
    if _manifests_in(folder):
        return []
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [path for path in below if is_place(path)]


def manifest_files(folder: Path) -> list[Path]:
    """Return the files of a folder, and of those in it, that `import_manifests` may read."""
    if not _shar_or_kaldi(folder) and not _manifests_in(folder):
        if saved := layouts.saved_datasets(folder):
            return [file for place, _ in saved for file in layouts.arrow_files(place)]
        return [part.path for part in layouts.table_parts(folder)] or layouts.transcript_files(folder)
    files = sorted(file for pattern in ("*", "*/*") for file in folder.glob(pattern))
    tars = {file for file in files if any(tar.fullmatch(file.name) for tar in TARS.values())}
    return [file for file in files if file in tars or file.name in layouts.KALDI_FILES or _is_manifest(file)]


def _manifests_in(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if _is_manifest(file)]


def _is_manifest(file: Path) -> bool:
    return file.name.endswith(SUFFIXES) and NAMED.fullmatch(_stem(file)) is not None


def _stem(file: Path) -> str:
    return file.name.partition(".")[0]


def _check_ids(path: str, imported: ImportedManifests) -> None:
    """Refuse ids that are in two splits, or that cannot stand in tables of one line per utterance."""
    first: dict[str, str] = {}
    for split, manifests in imported.splits.items():
        for segment in manifests.supervisions:
            if not is_one_line(segment.id):  # these tables are written after training
                raise ValueError(f"{path}: id {segment.id!r} must be one line of text without tabs")
            if (other_split := first.setdefault(segment.id, split)) != split:
                raise ValueError(
                    f"{path}: supervision {segment.id!r} is in the splits {other_split!r} and {split!r}; keep one"
                )
