"""Features of prepared data in shards: the same numbers as from files, in a folder that lhotse reads too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from lhotse import Features, MonoCut, SupervisionSegment
from lhotse.shar import SharWriter
from lhotse.utils import fastcopy

from asr.data.features import PrecomputedFeatures, read_features
from asr.data.manifests.corpus import Corpus, Manifests
from asr.data.manifests.import_manifests import import_manifests
from asr.data.preparation.prepare import PrepareSpec
from asr.data.preparation.prepared import PreparedData
from asr.data.preparation.shards import FeatureField, ShardStorage
from tests.data.corpora import PRECOMPUTED, Recipe, dropped, ids, run, utterance
from tests.data.feature_corpora import FEATURES_SPEC, FeatureRecipe, file_of, matrix, store, stored_utterance


@dataclass(frozen=True)
class Kind:
    """A kind of corpus, and how its features come to be.

    Attributes:
        recipe: makes the corpus.
        spec: how it is prepared.
    """

    recipe: Callable[[], Callable[[Path], Corpus]]
    spec: PrepareSpec


def cut_up(folder: Path, splits: dict[str, list]) -> None:
    """Add parts of a long recording, at another rate, that begin and end between frames."""
    recording, _ = utterance(folder, "long", duration_s=5.0, rate_hz=22_050)
    for start in (0.1, 1.23457, 3.3):
        segment = SupervisionSegment(f"part-{start}", "long", start, 1.2345, text="ab")
        splits["train"].append((recording, segment))


class Talks(FeatureRecipe):
    """Adds segments of one matrix."""

    def __call__(self, folder: Path) -> Corpus:
        corpus = super().__call__(folder)
        found = corpus.splits["train"]
        talk = store(folder, "talk", matrix(300, seed=1), start=2.0)
        segments = [SupervisionSegment(f"s{i}", "talk", 2.0 + 0.5 * i, 0.75, text="a") for i in range(3)]
        corpus.splits["train"] = Manifests.of([*found.features, talk], [*found.supervisions, *segments])
        return corpus


KINDS = {
    "log-mel of audio": Kind(Recipe, PRECOMPUTED),
    "log-mel of parts of recordings": Kind(lambda: Recipe(cut_up), PRECOMPUTED),
    "features without audio": Kind(FeatureRecipe, FEATURES_SPEC),
    "parts of a matrix": Kind(Talks, FEATURES_SPEC),
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr("asr.data.preparation.saved_corpus.CHUNK_UTTERANCES", 2)


def in_shards(spec: PrepareSpec, folder: Path) -> PrepareSpec:
    return replace(spec, shards=ShardStorage(folder, FeatureField(spec.features)))


def features(prepared: PreparedData, spec: PrepareSpec, split: str = "train") -> list[np.ndarray]:
    return [read_features(spec.features, cut) for cut in prepared.cuts(split)]


@kinds
def test_features_from_shards_are_those_from_files_to_the_last_digit(tmp_path, kind):
    files = run(tmp_path / "a", kind.recipe(), kind.spec)
    shards = run(tmp_path / "b", kind.recipe(), in_shards(kind.spec, tmp_path / "shards"))
    assert (files.mean, files.std, files.tokenizer.state()) == (shards.mean, shards.std, shards.tokenizer.state())
    assert files.splits == shards.splits
    for split in ("train", "dev", "test-x"):
        assert ids(files, split) == ids(shards, split)
        assert (files.cuts(split).durations == shards.cuts(split).durations).all()
        for first, second in zip(features(files, kind.spec, split), features(shards, kind.spec, split), strict=True):
            assert first.dtype == second.dtype
            assert np.array_equal(first, second)
    names = [path.name for path in sorted((tmp_path / "shards" / "train").iterdir())]
    assert names[:1] + names[-1:] == ["cuts.000000.jsonl.gz", f"features.{len(names) // 2 - 1:06d}.tar"]
    assert not list((tmp_path / "b").rglob("features")), "no features are stored twice"


@kinds
def test_prepared_cuts_need_nothing_but_the_shards(tmp_path, kind):
    spec = in_shards(kind.spec, tmp_path / "shards")
    prepared = run(tmp_path / "a", kind.recipe(), spec)
    kept = features(prepared, spec)
    for file in [*tmp_path.rglob("*.wav"), *tmp_path.rglob("*.npy")]:
        file.unlink()
    assert all(np.array_equal(*pair) for pair in zip(kept, features(prepared, spec), strict=True))
    assert set(prepared.shards) == {str(path) for path in (tmp_path / "shards").rglob("features.*.tar")}


def test_features_that_vanish_before_they_are_stored_are_dropped_and_named(tmp_path, monkeypatch):
    def change(folder: Path, splits: dict[str, list[tuple[Features, SupervisionSegment]]]) -> None:
        splits["dev"].append(stored_utterance(folder, "gone"))
        gone.append(file_of(splits["dev"][-1][0]))

    gone: list[Path] = []
    read = FeatureField.read

    def read_later(self, cut):
        gone[0].unlink(missing_ok=True)
        return read(self, cut)

    monkeypatch.setattr(FeatureField, "read", read_later)
    prepared = run(tmp_path / "a", FeatureRecipe(change), in_shards(FEATURES_SPEC, tmp_path / "shards"))
    assert ids(prepared, "dev") == ["dev-0", "dev-1"]
    assert dropped(prepared)["dev", "gone"].startswith("unreadable features: FileNotFoundError")


@kinds
def test_the_folder_is_a_corpus_of_its_own_with_the_same_numbers(tmp_path, kind):
    spec = in_shards(kind.spec, tmp_path / "shards")
    prepared = run(tmp_path / "a", kind.recipe(), spec)
    imported = import_manifests(tmp_path / "shards")
    assert imported.dropped == imported.notes == []
    again = replace(spec, features=PrecomputedFeatures(spec.features.num_features), shards=None)
    found = run(tmp_path / "b", lambda folder: Corpus(imported.splits), again)
    assert (found.mean, found.std) == (prepared.mean, prepared.std)
    for split in ("train", "dev", "test-x"):
        assert ids(found, split) == ids(prepared, split)
        # lhotse rounds durations to samples at the rate of the features
        assert np.abs(found.cuts(split).durations - prepared.cuts(split).durations).max() < 1e-4
        pairs = zip(features(prepared, spec, split), features(found, again, split), strict=True)
        assert all(np.array_equal(*pair) for pair in pairs)
    assert set(found.shards) == set(prepared.shards)


def of_lhotse(folder: Path, compression: str = "numpy", shard_size: int | None = 2) -> list[MonoCut]:
    """Write a Shar folder with lhotse: whole features, and parts of longer ones; return the cuts."""
    cuts = []
    for number in range(5):
        stored = fastcopy(store(folder / "held", f"r{number}", matrix(200, seed=number)), recording_id=None)
        whole = MonoCut(f"c/{number}.x", 0.0, 2.0, 0, features=stored)
        cut = whole if number % 2 else whole.truncate(offset=0.5, duration=1.0, preserve_id=True)
        cut.supervisions = [SupervisionSegment(f"s{number}", "r", 0.0, cut.duration, text="ab", speaker="x")]
        cuts.append(cut)
    with SharWriter(folder, {"features": compression}, shard_size=shard_size) as writer:
        for cut in cuts:
            writer.write(cut)
    return cuts


@pytest.mark.parametrize("shard_size", [2, None])
def test_shards_of_lhotse_are_read_as_they_are(tmp_path, shard_size):
    (tmp_path / "shar").mkdir()
    cuts = of_lhotse(tmp_path / "shar", shard_size=shard_size)
    (whole,) = import_manifests(tmp_path / "shar").splits.values()
    spec = FEATURES_SPEC
    prepared = run(tmp_path / "data", lambda folder: Corpus({"train": whole, **elsewhere(folder)}), spec)
    assert [cut.supervisions[0].speaker for cut in prepared.cuts("train")] == ["x"] * 5
    for cut, found in zip(cuts, features(prepared, spec), strict=True):
        assert np.array_equal(cut.load_features().astype(np.float32), found)
    assert set(prepared.shards) == {str(path) for path in (tmp_path / "shar").glob("features*.tar")}


def elsewhere(folder: Path) -> dict[str, Manifests]:
    corpus = FeatureRecipe()(folder)
    return {name: manifests for name, manifests in corpus.splits.items() if name != "train"}
