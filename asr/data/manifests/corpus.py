"""What a recipe's prepare function returns: manifests per split, and the items that were dropped.

A prepare function is called as ``prepare_x(output_dir, source=..., **options) -> Corpus``. It may write audio below
``output_dir`` (where an interrupted call may have left some), reports progress, and writes nowhere else.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from lhotse import Features, FeatureSet, Recording, RecordingSet, SupervisionSegment, SupervisionSet

from asr.safe_io import write_whole

Source: TypeAlias = Recording | Features
SPLIT = re.compile(r"(train|dev|test)[^/\\\x00-\x1f]{0,100}")  # files are named by splits


@dataclass(frozen=True)
class Dropped:
    """An item that is not used, and why; what precedes a colon in the reason is its kind."""

    split: str
    item: str
    reason: str


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

    def __post_init__(self) -> None:
        if self.features is not None and next(iter(self.recordings), None) is not None:
            raise ValueError("a split has recordings or features, not both; features are computed from recordings")

    def sources(self) -> dict[str, Source]:
        """Return the recordings, or the features, by the id of the recording."""
        if self.features is not None:
            return {str(features.recording_id): features for features in self.features}
        return {recording.id: recording for recording in self.recordings}


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
                raise ValueError(
                    f"split {name[:150]!r}: the name of a split starts with one of train, dev, test and has neither "
                    "slashes nor more than 100 characters after it"
                )
