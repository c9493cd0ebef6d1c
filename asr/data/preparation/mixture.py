"""Several corpora as one: their training and dev sets joined, the test sets of each kept apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lhotse import SupervisionSegment
from lhotse.utils import fastcopy

from asr.data.manifests.corpus import Corpus, Dropped, Manifests, Source, files_of
from asr.data.preparation.saved_corpus import SavedCorpus

Item = TypeVar("Item")
SEPARATOR = ":"  # in ids, after the name of the corpus


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
        sources: dict[str, dict[str, Source]] = defaultdict(dict)
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
                for manifests in _named_manifests(corpus, split, name):
                    _join(sources[joined], manifests.sources(), joined)
                    _join(segments[joined], {segment.id: segment for segment in manifests.supervisions}, joined)
            dropped += [Dropped(_joined_split(d.split, name), _own(name, d.item), d.reason) for d in corpus.dropped]
            notes += [f"{name}: {note}" for note in corpus.notes]
        _refuse_leaks(sources)
        splits = {split: Manifests.of(items.values(), segments[split].values()) for split, items in sources.items()}
        return Corpus(splits, dropped, tuple(notes), sources=tuple(corpora))


def corpus_of(item_id: str) -> str:
    """Return the name of the corpus that an id of a mixture begins with."""
    return item_id.partition(SEPARATOR)[0]


def _own(name: str, item: str) -> str:
    return f"{name}{SEPARATOR}{item}"


def _joined_split(split: str, name: str) -> str:
    for kind in ("train", "dev"):
        if split.startswith(kind):
            return kind
    return f"test-{name}{split.removeprefix('test')}"


def _join(items: dict[str, Item], more: Mapping[str, Item], split: str) -> None:
    """Add items to those of a split; two dev sets of one corpus may share some.

    Raises:
        ValueError: one id stands for two different items.
    """
    for item_id, item in more.items():
        if items.setdefault(item_id, item) != item:
            raise ValueError(
                f"data.sources: {item_id} occurs twice in {split}, and differs; give one of them another id"
            )


def _refuse_leaks(sources: Mapping[str, Mapping[str, Source]]) -> None:
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


def _named_manifests(corpus: SavedCorpus, split: str, name: str) -> Iterator[Manifests]:
    """Yield the manifests of the chunks of a split, with ids that no other corpus of the mixture has."""
    for chunk in corpus.chunks(split):
        manifests = chunk.manifests()
        segments = [
            fastcopy(
                segment,
                id=_own(name, segment.id),
                recording_id=_own(name, segment.recording_id),
                speaker=None if segment.speaker is None else _own(name, segment.speaker),
            )
            for segment in manifests.supervisions
        ]
        sources = [
            fastcopy(source, **{"id" if manifests.features is None else "recording_id": _own(name, source_id)})
            for source_id, source in manifests.sources().items()
        ]
        yield Manifests.of(sources, segments)
