"""What a recipe's prepare function returns: manifests per split, and the items that were dropped.

A prepare function is called as ``prepare_x(output_dir, source=..., **options) -> Corpus``. It may write audio below
``output_dir`` (where an interrupted call may have left some), reports progress, and writes nowhere else.
"""

from __future__ import annotations

import csv
import functools
import io
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from lhotse import Features, FeatureSet, Recording, RecordingSet, SupervisionSegment, SupervisionSet

from asr.safe_io import write_whole

Source: TypeAlias = Recording | Features
SPLIT = re.compile(r"(train|dev|test)[^/]*")  # files are named by splits


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
    def of(cls, sources: Iterable[Source], segments: Iterable[SupervisionSegment]) -> Manifests:
        """Return the manifests of recordings or features, and of segments in them."""
        sources = list(sources)
        recordings = RecordingSet.from_recordings(s for s in sources if isinstance(s, Recording))
        features = [source for source in sources if isinstance(source, Features)]
        supervisions = SupervisionSet.from_segments(segments)
        return cls(recordings, supervisions, FeatureSet.from_features(features) if features else None)

    def sources(self) -> dict[str, Source]:
        """Return the recordings, or the features, by the id of the recording.

        Raises:
            ValueError: two have one id, so that an utterance could get the wrong audio.
        """
        sources: dict[str, Source] = {}
        for source in self.recordings if self.features is None else self.features:
            name = str(source.recording_id) if isinstance(source, Features) else source.id
            if (first := sources.setdefault(name, source)) != source:
                raise ValueError(f"two recordings have the id {name!r}: {files_of(first)[0]} and {files_of(source)[0]}")
        return sources


def files_of(source: Source) -> tuple[str, ...]:
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
        for name in self.splits:
            if not SPLIT.fullmatch(name):
                raise ValueError(f"split {name!r}: a split is named train…, dev… or test…, without slashes")
        _refuse_leaks(self.splits)


def _refuse_leaks(splits: Mapping[str, Manifests]) -> None:
    """Refuse the same part of a recording in splits of different kinds, under different ids."""
    utterances: dict[tuple[Any, ...], tuple[str, str]] = {}
    for split, manifests in splits.items():
        kind = SPLIT.fullmatch(split)[1]  # type: ignore[index]
        files = {name: files_of(source) for name, source in manifests.sources().items()}
        for segment in manifests.supervisions:
            span = round(segment.start, 2), round(segment.end, 2)
            place = files.get(segment.recording_id, ())
            other, its_kind = utterances.setdefault((place, str(segment.channel), *span), (segment.id, kind))
            if place and its_kind != kind:
                raise ValueError(
                    f"utterances {other!r} of {its_kind} and {segment.id!r} of {split} are the same {span[0]:g} to "
                    f"{span[1]:g} s of {place[0]}: what is trained on would be tested on; remove one of them"
                )
