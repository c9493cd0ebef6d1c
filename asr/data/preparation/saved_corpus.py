"""The manifests of a corpus on disk, read again chunk by chunk: no more than a chunk is in memory at a time."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from lhotse import SupervisionSegment

from asr.data.manifests.corpus import SPLIT, Corpus, Dropped, Manifests
from asr.data.manifests.lhotse_jsonl import parse_manifests
from asr.data.manifests.plain_items import to_line
from asr.data.manifests.source_files import read_lines
from asr.data.preparation.audio_sample import write_sample
from asr.data.preparation.file_digests import describe_file, refuse_changed
from asr.plain_data import read_json
from asr.safe_io import write_whole

CORPUS_INDEX = "corpus.json"
MAX_CORPUS_INDEX_BYTES, MAX_CORPUS_INDEX_VALUES = 2**29, 4_000_000  # it lists every dropped item
KINDS = ("recordings", "features")
CHUNK_UTTERANCES = 500  # a second of checking, or some seconds of computing features
CHUNK_SOURCES = 2000  # recordings without utterances
GZIP_LEVEL = 3  # 9, the default, takes ten times as long for a tenth less


@dataclass(frozen=True)
class Chunk:
    """Some recordings of a split with all their utterances, as lines of manifests.

    Attributes:
        split: its name.
        number: of the chunk in its split, from 0.
        kind: of the sources: recordings or features.
        sources: a line for each.
        segments: a line for each utterance, those of a recording together.
    """

    split: str
    number: int
    kind: str
    sources: tuple[str, ...]
    segments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name that no other chunk of the corpus has."""
        return f"{self.split}-{self.number:06d}"

    def digest(self) -> str:
        """Return the SHA-256 of all lines."""
        content = hashlib.sha256(self.kind.encode())
        for line in (*self.sources, "\n", *self.segments):
            content.update(line.encode())
        return content.hexdigest()

    def manifests(self) -> Manifests:
        """Return the manifests of the lines, with the checks for any manifest."""
        return parse_manifests(self.kind, self.sources, self.segments)


@dataclass(frozen=True)
class SavedSplit:
    """What the index says of a split.

    Attributes:
        kind: of its sources.
        duration_s: of all utterances.
        sizes: sources and utterances of each chunk.
    """

    kind: str
    duration_s: float
    sizes: list[tuple[int, int]]


@dataclass(frozen=True)
class SavedCorpus:
    """A corpus whose manifests lie in a folder.

    Attributes:
        folder: of the files.
        splits: by name.
        dropped: items of the source that are in no split.
        notes: sentences to show with all results on this corpus.
        sources: names of the corpora that it is a mixture of.
    """

    folder: Path
    splits: dict[str, SavedSplit]
    dropped: list[Dropped] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @classmethod
    def save(cls, folder: Path, corpus: Corpus) -> SavedCorpus:
        """Write manifests in lhotse's format, in the order of the recordings; the index comes last."""
        splits = {name: _write_split(folder, name, manifests) for name, manifests in corpus.splits.items()}
        index = {
            "splits": {name: vars(split) for name, split in splits.items()},
            "notes": corpus.notes,
            "sources": corpus.sources,
            "dropped": [(item.split, item.item, item.reason) for item in corpus.dropped],
            "files": {path.name: describe_file(path) for name in splits for path in _files(folder, name, splits[name])},
        }
        write_sample(folder, corpus)
        write_whole(folder / CORPUS_INDEX, json.dumps(index, indent=None))
        # read back, so that an interrupted and an uninterrupted call use the same
        return cls.load(folder)

    @classmethod
    def load(cls, folder: Path) -> SavedCorpus:
        """Read the index, and compare the files with their digests.

        Raises:
            ValueError: something is missing, changed, malformed, or of an earlier version of this program.
        """
        index = read_json(folder / CORPUS_INDEX, MAX_CORPUS_INDEX_BYTES, MAX_CORPUS_INDEX_VALUES)
        if not isinstance(index, Mapping) or not all(
            isinstance(index.get(key), Mapping) for key in ("splits", "files")
        ):
            raise ValueError(f"{CORPUS_INDEX} is of an earlier version, or damaged")
        splits = {name: _checked(name, split) for name, split in index["splits"].items()}
        for name, split in splits.items():
            for path in _files(folder, name, split):
                refuse_changed(path, index["files"].get(path.name), CORPUS_INDEX)
        dropped = [Dropped(*map(str, item)) for item in index["dropped"]]
        notes, sources = (tuple(map(str, index.get(key, ()))) for key in ("notes", "sources"))
        return cls(folder, splits, dropped, notes, sources)

    @property
    def duration_s(self) -> float:
        """Seconds of all utterances."""
        return sum(split.duration_s for split in self.splits.values())

    def chunks(self, split: str) -> Iterator[Chunk]:
        """Yield the chunks of a split in order.

        Raises:
            ValueError: a file has fewer lines than the index says.
        """
        saved = self.splits[split]
        sources, segments = (read_lines(path) for path in _files(self.folder, split, saved))
        for number, (num_sources, num_segments) in enumerate(saved.sizes):
            chunk = Chunk(
                split, number, saved.kind, tuple(islice(sources, num_sources)), tuple(islice(segments, num_segments))
            )
            if (len(chunk.sources), len(chunk.segments)) != (num_sources, num_segments):
                raise ValueError(
                    f"the manifests of split {split!r} in {self.folder} have fewer lines than were written"
                )
            yield chunk


def _files(folder: Path, name: str, split: SavedSplit) -> list[Path]:
    return [folder / f"{kind}_{name}.jsonl.gz" for kind in (split.kind, "supervisions")]


def _write_split(folder: Path, name: str, manifests: Manifests) -> SavedSplit:
    of_source: dict[str, list[SupervisionSegment]] = defaultdict(list)
    duration_s = 0.0
    for segment in manifests.supervisions:
        of_source[segment.recording_id].append(segment)
        duration_s += segment.duration
    split = SavedSplit(KINDS[0] if manifests.features is None else KINDS[1], round(duration_s, 3), [])
    source_file, segment_file = _files(folder, name, split)
    num_sources = num_segments = 0
    with (
        source_file.open("wb") as first,
        segment_file.open("wb") as second,
        gzipped(first) as sources,
        gzipped(second) as segments,
    ):
        for source_id, source in manifests.sources().items():
            own = of_source.get(source_id, ())
            sources.write(to_line(source).encode())
            segments.write("".join(map(to_line, own)).encode())
            num_sources, num_segments = num_sources + 1, num_segments + len(own)
            if num_segments >= CHUNK_UTTERANCES or num_sources >= CHUNK_SOURCES:
                split.sizes.append((num_sources, num_segments))
                num_sources = num_segments = 0
    if num_sources:
        split.sizes.append((num_sources, num_segments))
    return split


def gzipped(file: IO[bytes]) -> gzip.GzipFile:
    """Return what compresses into a file, without name and time: the same content is the same bytes."""
    return gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0)


def _checked(name: str, split: Any) -> SavedSplit:
    if not SPLIT.fullmatch(name) or not isinstance(split, Mapping) or split.get("kind") not in KINDS:
        raise ValueError(f"{CORPUS_INDEX} has a split {name[:100]!r} that this program did not write")
    duration_s, sizes = split.get("duration_s"), split.get("sizes")
    if not isinstance(duration_s, int | float) or not 0 <= duration_s < math.inf or not isinstance(sizes, list):
        raise ValueError(f"split {name!r} of {CORPUS_INDEX} has no duration, or no sizes")
    if not all(_are_counts(size) for size in sizes):
        raise ValueError(f"split {name!r} of {CORPUS_INDEX} has chunks that are no two counts")
    return SavedSplit(split["kind"], float(duration_s), [(first, second) for first, second in sizes])


def _are_counts(size: Any) -> bool:
    return isinstance(size, list) and len(size) == 2 and all(type(count) is int and count >= 0 for count in size)


def first_source(corpus: SavedCorpus, split: str) -> Manifests:
    """Return the manifests of the first recording, or the first features, of a split."""
    return _first(corpus.chunks(split)).manifests()


def _first(chunks: Iterable[Chunk]) -> Chunk:
    chunk = next(iter(chunks))
    return Chunk(chunk.split, chunk.number, chunk.kind, chunk.sources[:1], ())
