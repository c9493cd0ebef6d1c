"""A corpus as manifests by split: made from rows that name audio and text, or from stored features."""

from __future__ import annotations

import csv
import functools
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from lhotse import Features, FeatureSet, Recording, RecordingSet, SupervisionSegment, SupervisionSet
from lhotse.features.io import FeaturesReader, register_reader

from asr.data.manifests.audio import TOLERATED_S, ShardMember, open_recordings
from asr.data.parallel import num_processes
from werdict.files import naming, write_whole
from werdict.text_files import composed

RecordingOrFeatures: TypeAlias = Recording | Features
SPLIT = re.compile(r"(train|dev|test)[^/]*")  # files are named by splits
IN_SHARD = "numpy_shard"


@dataclass(frozen=True)
class Dropped:
    """An item that is not used, and why; what precedes a colon in the reason is its kind. Its audio may be repaired."""

    split: str
    item: str
    reason: str
    audio: str | None = field(default=None, compare=False)


def write_dropped(path: Path, dropped: Iterable[Dropped]) -> None:
    """Write a TSV of split, item and reason."""
    table = io.StringIO(newline="")
    rows = ((item.split, item.item, item.reason) for item in dropped)
    csv.writer(table, delimiter="\t").writerows([("split", "item", "reason"), *rows])
    # file names need not be UTF-8
    write_whole(path, table.getvalue().encode("utf-8", "backslashreplace"))


def nothing_left(split: str, dropped: Iterable[Dropped], advice: str) -> ValueError:
    """Return the error about a split all of whose items were dropped."""
    first = [f"{item.item}: {item.reason}" for item in dropped if item.split == split][:5]
    return ValueError(f"nothing is left of split {split!r}; the first reasons: {first}. {advice}")


@dataclass(frozen=True)
class Manifests:
    """Supervisions and their recordings; or, for a corpus without audio, their features.

    Attributes:
        recordings: empty without audio.
        supervisions: each names a recording.
        features: of one whole recording each; None with audio.
    """

    recordings: RecordingSet
    supervisions: SupervisionSet
    features: FeatureSet | None = None

    @classmethod
    def of(cls, sources: Iterable[RecordingOrFeatures], segments: Iterable[SupervisionSegment]) -> Manifests:
        """Return the manifests of recordings or features, and of segments in them."""
        sources = list(sources)
        recordings = RecordingSet.from_recordings(s for s in sources if isinstance(s, Recording))
        features = [source for source in sources if isinstance(source, Features)]
        supervisions = SupervisionSet.from_segments(segments)
        return cls(recordings, supervisions, FeatureSet.from_features(features) if features else None)

    def sources(self) -> dict[str, RecordingOrFeatures]:
        """Return the recordings, or the features, by the id of the recording.

        Raises:
            ValueError: two have one id, so that an utterance could get the wrong audio.
        """
        sources: dict[str, RecordingOrFeatures] = {}
        for source in self.recordings if self.features is None else self.features:
            name = str(source.recording_id) if isinstance(source, Features) else source.id
            if (first := sources.setdefault(name, source)) != source:
                raise ValueError(f"two recordings have the id {name!r}: {files_of(first)[0]} and {files_of(source)[0]}")
        return sources


def files_of(source: RecordingOrFeatures) -> tuple[str, ...]:
    """Return where the files of a recording, or of features, lie, links followed."""
    if isinstance(source, Features):
        return (f"{followed(source.storage_path)}/{source.storage_key}",)
    return tuple(followed(str(part.source)) for part in source.sources)


def followed(path: str) -> str:
    """Return the path of a file without links."""
    folder, name = os.path.split(path)
    # folders are few, and files rarely links
    place = os.path.join(_real_folder(folder), name)
    return os.path.realpath(place) if os.path.islink(place) else place


_real_folder = functools.lru_cache(maxsize=1000)(os.path.realpath)


@dataclass(frozen=True)
class Corpus:
    """Manifests by split.

    Attributes:
        splits: by name: ``train``; ``dev…`` to choose checkpoints by; ``test…``, decoded once at the end.
        dropped: items of the source that are in no split.
        notes: sentences to show with all results on this corpus.
        sources: names of the corpora that it is a mixture of, in their order in each split.
    """

    splits: dict[str, Manifests]
    dropped: list[Dropped] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kinds = {name: match[1] for name in self.splits if (match := SPLIT.fullmatch(name))}
        if unknown := self.splits.keys() - kinds.keys():
            raise ValueError(f"split {min(unknown)!r}: a split is named train…, dev… or test…, without slashes")
        # no part of a recording may be in splits of different kinds, under different ids
        utterances: dict[tuple[Any, ...], tuple[str, str]] = {}
        for split, manifests in self.splits.items():
            files = {name: files_of(source) for name, source in manifests.sources().items()}
            for segment in manifests.supervisions:
                span = round(segment.start, 2), round(segment.end, 2)
                place = files.get(segment.recording_id, ())
                own = segment.id, kinds[split]
                other, its_kind = utterances.setdefault((place, str(segment.channel), *span), own)
                if place and its_kind != kinds[split]:
                    raise ValueError(
                        f"utterances {other!r} of {its_kind} and {segment.id!r} of {split} are the same {span[0]:g} to "
                        f"{span[1]:g} s of {place[0]}: what is trained on would be tested on; remove one of them"
                    )


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """An utterance: a file, or a part of it, and what is said.

    Attributes:
        stem: path of the audio as it is written, without its ending.
        audio: the file, which may be missing.
        text: transcript as written.
        where: file and line, for messages.
        speaker: None where unknown.
        split: as written; None where it says none.
        id: as it is given; None: from the path.
        start_s: where it begins in its file.
        end_s: where it ends; None: at the end of the file.
        channel: of the file, from 0; None: the first that is not silent.
        language: None where unknown.
    """

    stem: str
    audio: Path
    text: str
    where: str
    speaker: str | None = None
    split: str | None = None
    id: str | None = None
    start_s: float = 0.0
    end_s: float | None = None
    channel: int | None = None
    language: str | None = None


def manifests_of_rows(
    rows: Sequence[tuple[str, ManifestRow]], num_jobs: int
) -> dict[str, tuple[Manifests, list[Dropped]]]:
    """Return, by split, the manifests of the rows whose audio can be used, and the others.

    The id of a recording is its path as written without the ending, or as much of it as no other file has. So is that
    of an utterance, unless it is given; several parts of a file are numbered.

    Args:
        rows: of a whole source, in order, each with its split.
        num_jobs: processes that read headers.

    Raises:
        ValueError: an id occurs twice, or a file twice as a whole; names file and line.
    """
    rows, repeats = _without_repeats(rows)
    names = _names_of_files(row for _, row in rows)
    opened = open_recordings([*names.items()], num_jobs)
    recordings = dict(zip(names, opened, strict=True))
    first: dict[str, str] = {}
    by_split: dict[str, tuple[list[SupervisionSegment], list[Dropped]]] = defaultdict(lambda: ([], []))
    in_file, counts = Counter(row.audio for _, row in rows), Counter[Path]()
    for split, row in rows:
        counts[row.audio] += 1
        is_alone = in_file[row.audio] == 1 or (row.start_s == 0 and row.end_s is None)
        id = composed(row.id or names[row.audio] + ("" if is_alone else f"-{counts[row.audio]}"))
        if first.setdefault(id, row.where) != row.where:
            raise ValueError(
                f"{row.where}: the id {id!r} occurs before, in {first[id]}; name each file once, or add a column id"
            )
        recording, problem = recordings[row.audio]
        segments, dropped = by_split[split]
        if recording is None:
            dropped.append(Dropped(split, id, problem, str(row.audio)))
        else:
            end_s = recording.duration if row.end_s is None else row.end_s
            if abs(end_s - recording.duration) <= TOLERATED_S:  # durations are rounded
                end_s = recording.duration
            duration_s = end_s - row.start_s
            channels = recording.channel_ids if recording.num_channels > 1 else 0
            channel = channels if row.channel is None else row.channel
            place = id, recording.id, row.start_s, duration_s, channel
            segments.append(SupervisionSegment(*place, row.text, row.language, row.speaker))
    for split, row, reason in repeats:
        by_split[split][1].append(Dropped(split, names[row.audio], reason))
    usable = [recording for recording, _ in recordings.values() if recording]
    # of each split only the recordings that it uses are kept later
    return {split: (Manifests.of(usable, segments), dropped) for split, (segments, dropped) in by_split.items()}


def manifests_of_split(
    split: str, rows: Iterable[ManifestRow], num_jobs: int | None
) -> tuple[Manifests, list[Dropped]]:
    """Return the manifests of the rows of one split, and those that cannot be used; see `manifests_of_rows`.

    Args:
        split: that they belong to; it may be empty.
        rows: with ids of their own.
        num_jobs: processes that read headers, None for one on each core.
    """
    by_split = manifests_of_rows([(split, row) for row in rows], num_processes(num_jobs))
    return by_split.get(split, (Manifests.of((), ()), []))


def _without_repeats(
    rows: Sequence[tuple[str, ManifestRow]],
) -> tuple[list[tuple[str, ManifestRow]], list[tuple[str, ManifestRow, str]]]:
    """Return rows without those that only repeat another, and these with the reason; an id would make them different.

    Raises:
        ValueError: two rows give one part of a file different texts.
    """
    first: dict[object, ManifestRow] = {}
    unique, repeats = [], []
    for split, row in rows:
        other = row if row.id else first.setdefault((split, row.audio, row.start_s, row.end_s, row.channel), row)
        if other.text != row.text:
            raise ValueError(
                f"{row.where}: {other.where} gives the same audio another text; keep one of them, or give both an id"
            )
        if other is row:
            unique.append((split, row))
        else:
            repeats.append((split, row, f"repeated: {row.where} is the same as {other.where}"))
    return unique, repeats


def _names_of_files(rows: Iterable[ManifestRow]) -> dict[Path, str]:
    """Return a name for each file: no two files have one."""
    stems = {row.audio: row.stem for row in rows}
    files: dict[str, list[Path]] = defaultdict(list)
    for file, stem in stems.items():
        files[stem].append(file)
    names = {}
    for file, stem in stems.items():
        others = files[stem]
        with_ending = f"{stem}{file.suffix}"
        is_only_ending = len({other.suffix for other in others}) == len(others) and with_ending not in files
        names[file] = stem if len(others) == 1 else with_ending if is_only_ending else str(file)
    return names


def place_of(features: Features) -> str:
    """Return the file that holds features, or the place in a tar, as `ShardMember` names it."""
    path, key = features.storage_path, features.storage_key
    return f"{path}:{key}" if features.storage_type == IN_SHARD else os.path.join(path, key)


def storage_of(member: ShardMember) -> dict[str, str]:
    """Return the fields by which features name a member of a tar."""
    place = str(member).removeprefix(f"{member.tar}:")
    return {"storage_type": IN_SHARD, "storage_path": member.tar, "storage_key": place}


@register_reader
class NumpyShardReader(FeaturesReader):
    """lhotse's reader of features in a tar."""

    name = IN_SHARD

    def __init__(self, storage_path: str) -> None:
        self.tar = storage_path

    def read(self, key: str, left_offset_frames: int = 0, right_offset_frames: int | None = None) -> np.ndarray:
        """Return features (frames, bins) from one frame to another.

        Raises:
            UnusableFile: they cannot be read.
        """
        member = ShardMember.find(f"{self.tar}:{key}")
        assert member is not None, f"{key!r} is not a place in a tar file"
        array: np.ndarray = np.load(io.BytesIO(member.read()), allow_pickle=False)
        return array[left_offset_frames:right_offset_frames]


def write_array(folder: Path, key: str, array: np.ndarray) -> dict[str, str]:
    """Write an array of any shape to ``<first letters>/<key>.npy`` below a folder.

    Returns:
        The fields by which features name it.

    Raises:
        OSError: it cannot be written; np.save to a path would lose the errno, which tells what is wrong with the disk.
    """
    name = f"{key[:3]}/{key}.npy"
    path = folder / name
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(npy_bytes(array))
    return {"storage_type": "numpy_files", "storage_path": str(folder), "storage_key": name}


def npy_bytes(array: np.ndarray) -> bytes:
    """Return an array of any shape as the content of a numpy file, without pickles."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()
