"""Checked manifests on disk: of a corpus, of a mixture of corpora, and the facts that choices follow from."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from lhotse import Features, Recording, SupervisionSegment
from lhotse.serialization import deserialize_item
from lhotse.utils import fastcopy

from asr.data.manifests.corpus import Corpus, Dropped, Manifests, RecordingOrFeatures, files_of
from asr.data.manifests.lhotse_manifests import ManifestItem, to_plain
from asr.data.preparation.prepared import FormerCuts, paths_in, portable_folder, portable_path, with_absolute_paths
from werdict.files import sync, write_whole

CORPUS_INDEX = "corpus.json"
CHUNK_UTTERANCES = 500  # a second of checking, or some seconds of computing features
CHUNK_SOURCES = 2000  # recordings without utterances
GZIP_LEVEL = 3  # 9, the default, takes ten times as long for a tenth less
SEPARATOR = ":"  # in ids, after the name of the corpus
Prepare = TypeVar("Prepare", bound=Callable[..., Any])


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
    """Entry of a split in the index.

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
    return hashlib.sha256(b"".join(lines)).hexdigest()


def portable_line(item: ManifestItem, folder: Path, data_dir: Path) -> bytes:
    """Return an item as a line of a manifest in ``folder``, with its end, in the format of lhotse's JSONL writer."""
    plain = to_plain(item)
    for named, key in paths_in(plain):
        portable = portable_path if key == "source" else portable_folder
        named[key] = portable(named[key], folder, data_dir)
    return f"{json.dumps(plain, ensure_ascii=False)}\n".encode()


def gzipped(file: IO[bytes]) -> gzip.GzipFile:
    """Return what compresses into a file, without name and time: the same content is the same bytes."""
    return gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0)


@dataclass(frozen=True)
class Mixture:
    """A prepare function of several corpora, whose manifests are made, or found, as each alone has them.

    Attributes:
        corpora: folder of prepared data → the corpus there, by name.
    """

    corpora: Mapping[str, Callable[[Path], SavedCorpus]]

    def __call__(self, output_dir: Path) -> Corpus:
        """Return splits ``train``, ``dev``, and ``test-<name>`` of each corpus; ids begin with its name.

        Raises:
            ValueError: some corpora have audio, others features alone; two test sets would have one name; or what one
                corpus trains on is in the dev or test set of another.
        """
        corpora = {name: load(output_dir.parent) for name, load in self.corpora.items()}
        kinds = {name: corpus.splits["train"].kind for name, corpus in corpora.items()}
        if len(set(kinds.values())) > 1:
            raise ValueError(
                "data.sources: corpora of audio and of features cannot be mixed, given "
                + ", ".join(f"{name} with {kind}" for name, kind in kinds.items())
            )
        sources: dict[str, dict[str, RecordingOrFeatures]] = defaultdict(dict)
        segments: dict[str, dict[str, SupervisionSegment]] = defaultdict(dict)
        dropped, notes = [], []
        tests: dict[str, str] = {}  # name of the corpus, by that of the test set
        for name, corpus in corpora.items():
            for split in corpus.splits:
                joined = _joined_split(split, name)
                if joined.startswith("test") and tests.setdefault(joined, name) != name:
                    raise ValueError(
                        f"data.sources: {tests[joined]} and {name} would both have a test set {joined!r}; give one of "
                        "them another name (name: in its entry)"
                    )
                for manifests in (chunk.manifests() for chunk in corpus.chunks(split)):
                    _join(sources[joined], manifests.sources().values(), name, joined)
                    _join(segments[joined], manifests.supervisions, name, joined)
            dropped += [
                Dropped(_joined_split(item.split, name), f"{name}{SEPARATOR}{item.item}", item.reason)
                for item in corpus.dropped
            ]
            notes += [f"{name}: {note}" for note in corpus.notes]
        _refuse_leaks(sources)
        splits = {split: Manifests.of(items.values(), segments[split].values()) for split, items in sources.items()}
        return Corpus(splits, dropped, tuple(notes), sources=tuple(corpora))


def corpus_of(item_id: str) -> str:
    """Return the name of the corpus that an id of a mixture begins with."""
    return item_id.partition(SEPARATOR)[0]


def _joined_split(split: str, name: str) -> str:
    for kind in ("train", "dev"):
        if split.startswith(kind):
            return kind
    return f"test-{name}{split.removeprefix('test')}"


def _join(
    items: dict[str, Any], more: Iterable[RecordingOrFeatures | SupervisionSegment], name: str, split: str
) -> None:
    """Add items of a corpus to those of a split, with ids of its own; two dev sets of one corpus may share some.

    Raises:
        ValueError: one id stands for two different items.
    """
    for item in more:
        named = [(key, getattr(item, key, None)) for key in ("id", "recording_id", "speaker")]
        names = {key: f"{name}{SEPARATOR}{value}" for key, value in named if value is not None}
        item_id = names.get("id") or names["recording_id"]
        own = fastcopy(item, **names)
        if items.setdefault(item_id, own) != own:
            raise ValueError(
                f"data.sources: {item_id} occurs twice in {split}, and differs; give one of them another id"
            )


def _refuse_leaks(sources: Mapping[str, Mapping[str, RecordingOrFeatures]]) -> None:
    """Refuse files that one corpus trains on and another holds out; each corpus has been checked in itself."""
    places = {
        split: [(place, corpus_of(name)) for name, source in by_name.items() for place in files_of(source)]
        for split, by_name in sources.items()
    }
    trained = dict(places.pop("train"))
    for split, held_out in places.items():
        for place, corpus in held_out:
            if (other := trained.get(place, corpus)) != corpus:
                kind = split.partition("-")[0]
                raise ValueError(
                    f"data.sources: {place} is in training of {other} and in the {kind} set of {corpus}; leave it out "
                    "of one of them"
                )


@dataclass(frozen=True)
class CorpusFacts:
    """Describes a training set before any audio is decoded.

    Attributes:
        hours: of its utterances.
        num_utterances: how many.
        num_speakers: different names of speakers; 0: no utterance names its own.
        rate_hz: the highest sampling rate of its audio; None: it has features alone.
        num_features: numbers per frame of features without audio; None: it has audio.
        fast_characters_hz: characters per second, pauses included, of the utterance that nine in ten are slower than.
    """

    hours: float
    num_utterances: int
    num_speakers: int
    rate_hz: int | None
    num_features: int | None
    fast_characters_hz: float

    @classmethod
    def of(cls, corpus: SavedCorpus) -> CorpusFacts:
        """Return the facts of split ``train``."""
        durations_s: list[float] = []
        num_characters: list[int] = []
        rate_hz, num_features, speakers = 0, 0, set()
        for chunk in corpus.chunks("train"):
            for segment in map(json.loads, chunk.segments):
                durations_s.append(segment["duration"])
                num_characters.append(len(segment.get("text") or ""))
                speakers.add(segment.get("speaker"))
            for source in map(json.loads, chunk.sources):
                rate_hz = max(rate_hz, source.get("sampling_rate", 0))
                num_features = max(num_features, source.get("num_features", 0))
        has_audio = corpus.splits["train"].kind == "recordings"
        seconds = np.array(durations_s)
        fast_hz = float(np.quantile(np.array(num_characters) / seconds.clip(1e-3), 0.9))
        size = seconds.sum() / 3600, len(seconds), len(speakers - {None})
        return cls(*size, rate_hz if has_audio else None, None if has_audio else num_features, fast_hz)


@dataclass(frozen=True)
class Choice:
    """A value for an option that the user leaves open.

    Attributes:
        key: of the option, or of a group.
        value: for it; of a group the name of its choice.
        reason: a few words, shown beside it; empty: nothing is shown.
    """

    key: str
    value: Any
    reason: str = ""


@dataclass(frozen=True)
class Budget:
    """Length of a run, as a recipe's config sets it.

    Attributes:
        updates: how many.
        batch_s: seconds of audio in the micro-batches of each.
    """

    updates: int
    batch_s: float


Choose = Callable[[CorpusFacts, Budget], Iterable[Choice | str]]
"""Yields choices, and sentences about what no option helps."""


def chooses(choose: Choose) -> Callable[[Prepare], Prepare]:
    """Let a prepare function say what options suit its corpus; what the user types wins."""

    def with_choices(prepare: Prepare) -> Prepare:
        prepare.choose = choose  # type: ignore[attr-defined]
        return prepare

    return with_choices
