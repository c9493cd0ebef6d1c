"""What a recipe's prepare function hands on: manifests per split, and what had to be left out.

A prepare function is called as ``prepare_x(output_dir, source=..., **options) -> Corpus``. It may write audio below
``output_dir`` (and find there what an interrupted call left), reports progress, and touches nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from lhotse import Features, FeatureSet, Recording, RecordingSet, SupervisionSegment, SupervisionSet

Source: TypeAlias = Recording | Features
SPLIT = re.compile(r"(train|dev|test)[^/\\\x00-\x1f]{0,100}")  # files are named by splits


@dataclass(frozen=True)
class Dropped:
    """One item that is not in the manifests, and why."""

    split: str
    item: str
    reason: str


@dataclass(frozen=True)
class Manifests:
    """Supervised segments, and the recordings that they lie in; or, where there is no audio, the features of those.

    Attributes:
        recordings: empty where there is no audio.
        supervisions: each names a recording.
        features: of one whole recording each; None where there is audio.
    """

    recordings: RecordingSet
    supervisions: SupervisionSet
    features: FeatureSet | None = None

    @classmethod
    def of(cls, sources: Iterable[Source], segments: Iterable[SupervisionSegment]) -> Manifests:
        """Return the manifests of recordings, or of features, and of segments in them."""
        sources = list(sources)
        recordings = RecordingSet.from_recordings(s for s in sources if isinstance(s, Recording))
        features = [source for source in sources if isinstance(source, Features)]
        supervisions = SupervisionSet.from_segments(segments)
        return cls(recordings, supervisions, FeatureSet.from_features(features) if features else None)

    def __post_init__(self) -> None:
        if self.features is not None and next(iter(self.recordings), None) is not None:
            raise ValueError("a split has recordings or features, not both; features are computed from recordings")

    def sources(self) -> dict[str, Source]:
        """Return the recordings, or the features, by the name of the recording."""
        if self.features is not None:
            return {str(features.recording_id): features for features in self.features}
        return {recording.id: recording for recording in self.recordings}

    def save(self, folder: Path, split: str) -> None:
        """Write the manifests of a split as lhotse's files."""
        if self.features is None:
            self.recordings.to_file(folder / f"recordings_{split}.jsonl.gz")
        else:
            self.features.to_file(folder / f"features_{split}.jsonl.gz")
        self.supervisions.to_file(folder / f"supervisions_{split}.jsonl.gz")


@dataclass(frozen=True)
class Corpus:
    """A corpus cut into splits.

    Attributes:
        splits: by name; ``train`` is trained on, names starting with ``dev`` choose checkpoints, names starting with
            ``test`` are decoded once at the end.
        dropped: items that the source holds and the splits do not.
        notes: sentences that must stand wherever results on this corpus are shown.
    """

    splits: dict[str, Manifests]
    dropped: list[Dropped] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.splits:
            if not SPLIT.fullmatch(name):
                raise ValueError(
                    f"split {name[:150]!r}: the name of a split starts with one of train, dev, test and has neither "
                    "slashes nor more than 100 characters after it"
                )
