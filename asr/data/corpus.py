"""What a recipe's prepare function hands on: manifests per split, and what had to be left out.

A prepare function is called as ``prepare_x(output_dir, source=..., **options) -> Corpus``. It may write audio below
``output_dir`` (and find there what an interrupted call left), reports progress, and touches nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lhotse import RecordingSet, SupervisionSet


@dataclass(frozen=True)
class Dropped:
    """One item that is not in the manifests, and why."""

    split: str
    item: str
    reason: str


@dataclass(frozen=True)
class Manifests:
    """Recordings and the supervised segments in them, lhotse's two basic manifests."""

    recordings: RecordingSet
    supervisions: SupervisionSet


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
        allowed = ("train", "dev", "test")
        for name in self.splits:
            if not name.startswith(allowed):
                raise ValueError(f"split {name!r}: the name of a split starts with one of {', '.join(allowed)}")
