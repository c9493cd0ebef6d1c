"""Imports a table, manifests of lhotse or NeMo, or a folder of Kaldi, with any splits."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lhotse import Features, Recording, SupervisionSegment

from asr.data.manifests.corpus import Dropped, Manifests, Source
from asr.data.manifests.lhotse_jsonl import read_cuts, read_items
from asr.data.manifests.recordings import Clip, manifests_of
from asr.data.manifests.shar.folders import TARS, find_shards, read_shards
from asr.data.manifests.toolkits import KALDI_FILES, is_kaldi, is_nemo, read_kaldi, read_nemo
from asr.data.manifests.tsv import SPLIT_ALIASES, read_table, split_of
from asr.text.normalize import is_one_line

UNSPLIT = "all"
SUFFIXES = (".jsonl", ".jsonl.gz")
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
KINDS = ("recordings", "features", "supervisions", "cuts")
NAMED = re.compile(rf"(?:.*[_-])?({'|'.join(KINDS)})(?:[_-](.+))?")  # cuts_train, librispeech_cuts_dev-clean
TOLERATED_SEGMENT_S = 1e-3  # what lhotse's validation allows


@dataclass
class ImportedManifests:
    """Manifests of a source, in which every supervision lies within a recording.

    Attributes:
        splits: by name; ``all`` for manifests without a split.
        dropped: items that cannot be used. The audio of lhotse manifests is not checked here.
        notes: what was ignored or renamed.
    """

    splits: dict[str, Manifests] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, split: str, manifests: Manifests, dropped: Iterable[Dropped] = ()) -> None:
        """Add a split: supervisions that lie within a recording, and these recordings; list the other supervisions.

        Raises:
            ValueError: there is such a split already.
        """
        if split in self.splits:
            raise ValueError(f"two manifests are of split {split!r}; keep one")
        sources = manifests.sources()
        segments = []
        self.dropped += dropped
        for segment in manifests.supervisions:
            if problem := segment_problem(segment, sources.get(segment.recording_id)):
                self.dropped.append(Dropped(split, segment.id, problem))
            else:
                segments.append(segment)
        used = {segment.recording_id for segment in segments}
        self.splits[split] = Manifests.of((source for name, source in sources.items() if name in used), segments)

    def split_named(self, path: Path, name: str) -> str:
        """Return the split that a table, or the name of a file or folder, means; note if it was called otherwise."""
        split = split_of(name)
        if split is None:
            raise ValueError(
                f"{path}: there is no split {name!r}; rename it: train, or a name that begins with dev or test"
            )
        note = f"split {name!r} was read as {split!r}"
        if name in SPLIT_ALIASES and note not in self.notes:
            self.notes.append(note)
        return split


def segment_problem(segment: SupervisionSegment, source: Source | None) -> str | None:
    """Return why a supervised part of a recording, or of its features, cannot be used, or None."""
    if source is None:
        return f"missing recording: {segment.recording_id}"
    first_s = source.start if isinstance(source, Features) else 0.0
    last_s = first_s + source.duration
    inside = first_s - TOLERATED_SEGMENT_S <= segment.start and first_s < segment.end <= last_s + TOLERATED_SEGMENT_S
    if not inside or segment.duration <= 0:
        return f"outside its recording: {segment.start} to {segment.end} s of {source.duration} s"
    channels = segment.channel if isinstance(segment.channel, list) else [segment.channel]
    # lhotse makes cuts of channel 0 from features without channels
    present = source.channel_ids if isinstance(source, Recording) else source.channels or 0
    present = present if isinstance(present, list) else [present]
    if not set(channels) <= set(present):
        return f"missing channel: {segment.channel}, the recording has {present}"
    return None


def import_manifests(path: Path, option: str = "data.source", num_jobs: int = 1) -> ImportedManifests:
    """Read a table, a manifest of cuts or of NeMo, or a folder of manifests, of shards, or of Kaldi.

    In a folder ``recordings_train.jsonl.gz``, or ``features_train.jsonl.gz`` without audio, belongs to
    ``supervisions_train.jsonl.gz``; the split follows the kind, and the name of a corpus may stand before it, as in
    ``librispeech_cuts_dev-clean.jsonl.gz``. Only lhotse's jsonl is read, because its other formats may hold code.
    Folders of Shar or of Kaldi may lie in a folder together, each with the name of its split.

    Args:
        path: of them.
        option: that names it, for messages.
        num_jobs: processes that read the headers of audio.

    Raises:
        ValueError: there are no manifests, or they are malformed, or would do more than read files.
    """
    if not path.exists():
        raise ValueError(f"{option}: there is no file or folder {str(path)!r}; give an existing path")
    imported = ImportedManifests()
    if path.is_dir():
        _read_folder(path, imported, num_jobs)
    elif path.name.endswith(ARCHIVES):
        raise ValueError(f"{path} is an archive; unpack it, and name the folder, or the table in it")
    elif path.name.endswith((*SUFFIXES, ".json")):
        match = NAMED.fullmatch(_stem(path)) or re.fullmatch(r"([^_-]*)[_-](.+)", _stem(path))
        name = match[2] if match else None
        split = imported.split_named(path, name) if name and split_of(name) else UNSPLIT
        imported.add(split, *(read_nemo(path, split, num_jobs) if is_nemo(path) else read_cuts(path, split)))
    else:
        _read_table(path, imported, num_jobs)
    _check_ids(path, imported)
    if several := sum(r.num_channels > 1 for manifests in imported.splits.values() for r in manifests.recordings):
        imported.notes.append(
            f"recordings with several channels: {several}; the channel of the supervision is used, or the first if it "
            "names several or none"
        )
    return imported


def _read_table(path: Path, imported: ImportedManifests, num_jobs: int) -> None:
    rows, notes = read_table(path)
    imported.notes += notes
    found: dict[str, list[Clip]] = defaultdict(list)
    for row in rows:
        found[imported.split_named(path, row.split) if row.split else UNSPLIT].append(row)
    for split, clips in found.items():
        imported.add(split, *manifests_of(split, clips, None, num_jobs))


def _read_folder(folder: Path, imported: ImportedManifests, num_jobs: int) -> None:
    shar, kaldi = _places_in(folder, find_shards), _places_in(folder, is_kaldi)
    for place in shar or kaldi:
        split = UNSPLIT if place == folder else imported.split_named(place, place.name)
        imported.add(split, *(read_shards(find_shards(place), split) if shar else [read_kaldi(place, num_jobs)]))
    if not shar and not kaldi:
        _read_manifests(folder, imported)


def _read_manifests(folder: Path, imported: ImportedManifests) -> None:
    files: dict[str, dict[str | None, Path]] = {kind: {} for kind in KINDS}
    for file in _manifests_in(folder):
        kind, name = NAMED.fullmatch(_stem(file)).groups()  # type: ignore[union-attr]
        files[kind][name] = file
    kind = "features" if files["features"] and not files["recordings"] else "recordings"
    sources, supervisions, cuts = files[kind], files["supervisions"], files["cuts"]
    if lonely := sources.keys() ^ supervisions.keys():
        name = min(lonely, key=str) or UNSPLIT
        raise ValueError(f"{folder}: split {name!r} has {kind} or supervisions, but not both")
    for name, file in (sources or cuts).items():
        split = UNSPLIT if name is None else imported.split_named(file, name)
        if sources:
            found = read_items(file, Recording if kind == "recordings" else Features)
            imported.add(split, Manifests.of(found, read_items(supervisions[name], SupervisionSegment)))
        else:
            imported.add(split, *read_cuts(file, split))
    if not sources and not cuts:
        raise ValueError(
            f"{folder}: no manifests are there; needed are recordings*.jsonl(.gz), or features*, with "
            "supervisions*.jsonl(.gz), or cuts*.jsonl(.gz), or wav.scp of Kaldi. Name the file itself if it is a table "
            "or a manifest of NeMo."
        )


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
    files = sorted(file for pattern in ("*", "*/*") for file in folder.glob(pattern))
    tars = {file for file in files if any(tar.fullmatch(file.name) for tar in TARS.values())}
    return [file for file in files if file in tars or file.name in KALDI_FILES or _is_manifest(file)]


def _manifests_in(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if _is_manifest(file)]


def _is_manifest(file: Path) -> bool:
    return file.name.endswith(SUFFIXES) and NAMED.fullmatch(_stem(file)) is not None


def _stem(file: Path) -> str:
    return file.name.partition(".")[0]


def _check_ids(path: Path, imported: ImportedManifests) -> None:
    """Refuse ids that are in two splits, or that cannot stand in tables of one line per utterance."""
    first: dict[str, str] = {}
    for split, manifests in imported.splits.items():
        for segment in manifests.supervisions:
            if not is_one_line(segment.id):  # these tables are written after training
                raise ValueError(f"{path}: id {segment.id!r} must be one line of text without tabs")
            if (known := first.setdefault(segment.id, split)) != split:
                raise ValueError(
                    f"{path}: supervision {segment.id!r} is in the splits {known!r} and {split!r}; keep one"
                )
