"""The manifests of a corpus on disk, read again chunk by chunk: no more than a chunk is in memory at a time."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO

from lhotse import Features, Recording, SupervisionSegment
from lhotse.serialization import deserialize_item

from asr.data.manifests.corpus import Corpus, Dropped, Manifests
from asr.data.manifests.lhotse_jsonl import ManifestItem, to_plain
from asr.data.preparation.indexed_cut_set import FormerCuts
from asr.data.preparation.portable_paths import with_absolute_paths, with_portable_paths
from asr.safe_io import sync, write_whole

CORPUS_INDEX = "corpus.json"
CHUNK_UTTERANCES = 500  # a second of checking, or some seconds of computing features
CHUNK_SOURCES = 2000  # recordings without utterances
GZIP_LEVEL = 3  # 9, the default, takes ten times as long for a tenth less


@dataclass(frozen=True)
class Chunk:
    """Some recordings of a split with all their utterances, as lines of manifests.

    Attributes:
        folder: of the manifests, from which their paths start.
        split: its name.
        number: of the chunk in its split, from 0.
        sources: recordings or features, a line for each.
        segments: a line for each utterance, those of a recording together.
    """

    folder: Path
    split: str
    number: int
    sources: tuple[bytes, ...]
    segments: tuple[bytes, ...]

    def manifests(self) -> Manifests:
        """Return the manifests of the lines."""
        sources = [deserialize_item(with_absolute_paths(json.loads(line), self.folder)) for line in self.sources]
        return Manifests.of(sources, [SupervisionSegment.from_dict(json.loads(line)) for line in self.segments])


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
        former: what was prepared before some of its audio changed.
    """

    folder: Path
    splits: dict[str, SavedSplit]
    dropped: list[Dropped] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    former: FormerCuts = field(default_factory=FormerCuts)

    @classmethod
    def save(cls, folder: Path, corpus: Corpus) -> SavedCorpus:
        """Write manifests in lhotse's format, in the order of the recordings; the index comes last."""
        splits = {name: _write_split(folder, name, manifests) for name, manifests in corpus.splits.items()}
        index = {
            "splits": {name: vars(split) for name, split in splits.items()},
            "notes": corpus.notes,
            "sources": corpus.sources,
            "dropped": [(item.split, item.item, item.reason) for item in corpus.dropped],
        }
        for name, split in splits.items():
            for path in _files(folder, name, split):
                sync(path)
        write_whole(folder / CORPUS_INDEX, json.dumps(index))
        # read back, so that an interrupted and an uninterrupted call use the same
        return cls.load(folder)

    @classmethod
    def load(cls, folder: Path) -> SavedCorpus:
        """Read the index, which is written last."""
        index = json.loads((folder / CORPUS_INDEX).read_bytes())
        splits = {name: SavedSplit(**split) for name, split in index["splits"].items()}
        dropped = [Dropped(*item) for item in index["dropped"]]
        return cls(folder, splits, dropped, tuple(index["notes"]), tuple(index["sources"]))

    def chunks(self, *splits: str) -> Iterator[Chunk]:
        """Yield the chunks of some splits, or of all, in order."""
        for split in splits or self.splits:
            saved = self.splits[split]
            source_file, segment_file = _files(self.folder, split, saved)
            with gzip.open(source_file) as sources, gzip.open(segment_file) as segments:
                for number, (num_sources, num_segments) in enumerate(saved.sizes):
                    lines = tuple(islice(sources, num_sources)), tuple(islice(segments, num_segments))
                    yield Chunk(self.folder, split, number, *lines)

    def first_source(self, split: str) -> Recording | Features:
        """Return the first recording, or the first features, of a split."""
        chunk = next(self.chunks(split))
        (source,) = replace(chunk, sources=chunk.sources[:1], segments=()).manifests().sources().values()
        return source


def _files(folder: Path, name: str, split: SavedSplit) -> list[Path]:
    return [folder / f"{kind}_{name}.jsonl.gz" for kind in (split.kind, "supervisions")]


def _write_split(folder: Path, name: str, manifests: Manifests) -> SavedSplit:
    of_source: dict[str, list[SupervisionSegment]] = defaultdict(list)
    duration_s = 0.0
    for segment in manifests.supervisions:
        of_source[segment.recording_id].append(segment)
        duration_s += segment.duration
    split = SavedSplit("recordings" if manifests.features is None else "features", round(duration_s, 3), [])
    source_file, segment_file = _files(folder, name, split)
    num_sources = num_segments = 0
    with (
        source_file.open("wb") as first,
        segment_file.open("wb") as second,
        gzipped(first) as sources,
        gzipped(second) as segments,
    ):
        for source_id, source in manifests.sources().items():
            source_segments = of_source.get(source_id, ())
            sources.write(portable_line(source, folder, folder.parent))
            segments.writelines(portable_line(segment, folder, folder.parent) for segment in source_segments)
            num_sources, num_segments = num_sources + 1, num_segments + len(source_segments)
            if num_segments >= CHUNK_UTTERANCES or num_sources >= CHUNK_SOURCES:
                split.sizes.append((num_sources, num_segments))
                num_sources = num_segments = 0
    if num_sources:
        split.sizes.append((num_sources, num_segments))
    return split


def digest(lines: Iterable[bytes]) -> str:
    """Return the SHA-256 of lines, by which what is made of them is found again."""
    content = hashlib.sha256()
    for line in lines:
        content.update(line)
    return content.hexdigest()


def portable_line(item: ManifestItem, folder: Path, data_dir: Path) -> bytes:
    """Return an item as a line of a manifest in ``folder``, with its end, in the format of lhotse's JSONL writer."""
    return f"{json.dumps(with_portable_paths(to_plain(item), folder, data_dir), ensure_ascii=False)}\n".encode()


def gzipped(file: IO[bytes]) -> gzip.GzipFile:
    """Return what compresses into a file, without name and time: the same content is the same bytes."""
    return gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0)
