"""Audio and features of prepared data in shards: the same numbers as from files, in a folder that lhotse reads too."""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.qa import validate
from lhotse.shar import SharWriter
from lhotse.utils import fastcopy

from asr.data.features import LogMel, PrecomputedFeatures, read_features
from asr.data.loading.augmentation import SpeedPerturb
from asr.data.manifests.corpus import Corpus
from asr.data.manifests.import_manifests import import_manifests
from asr.data.preparation.prepare import PrepareSpec, prepare
from asr.data.preparation.prepared import PreparedData
from asr.data.preparation.shards import AudioField, FeatureField, ShardStorage
from tests.data.corpora import (
    PRECOMPUTED,
    SPEC,
    Killed,
    Pair,
    Recipe,
    contents,
    dropped,
    ids,
    manifests,
    noise,
    run,
    utterance,
)
from tests.data.feature_corpora import FEATURES_SPEC, FeatureRecipe, matrix, store
from werdict.normalization import TextNormalizer


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr("asr.data.preparation.saved_corpus.CHUNK_UTTERANCES", 2)


@dataclass(frozen=True)
class Kind:
    """A kind of corpus, and how its features come to be.

    Attributes:
        recipe: makes the corpus.
        spec: how it is prepared.
        readings: options of what reads them.
    """

    recipe: Callable[[], Callable[[Path], Corpus]]
    spec: PrepareSpec
    readings: tuple[dict, ...] = ({},)


def cut_up(folder: Path, splits: dict[str, list]) -> None:
    """Add parts of a long recording, at another rate, that begin and end between frames."""
    recording, _ = utterance(folder, "long", duration_s=5.0, rate_hz=22_050)
    for start in (0.1, 1.23457, 3.3):
        segment = SupervisionSegment(f"part-{start}", "long", start, 1.2345, text="ab")
        splits["train"].append((recording, segment))


def add_talk(folder: Path, splits: dict[str, list[Pair]]) -> None:
    """Add segments of one matrix."""
    talk = store(folder, "talk", matrix(300, seed=1), start=2.0)
    segments = [SupervisionSegment(f"s{i}", "talk", 2.0 + 0.5 * i, 0.75, text="a") for i in range(3)]
    splits["train"] += [(talk, segment) for segment in segments]


KINDS = {
    "audio of files": Kind(Recipe, SPEC, ({}, {"rate_hz": 16_000}, {"perturb": True})),
    "audio of parts of recordings": Kind(lambda: Recipe(cut_up), SPEC),
    "log-mel of audio": Kind(Recipe, PRECOMPUTED),
    "log-mel of parts of recordings": Kind(lambda: Recipe(cut_up), PRECOMPUTED),
    "features without audio": Kind(FeatureRecipe, FEATURES_SPEC),
    "parts of a matrix": Kind(lambda: FeatureRecipe(add_talk), FEATURES_SPEC),
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
FROM_FEATURES = {name: kind for name, kind in KINDS.items() if kind.spec is not SPEC}
of_features = pytest.mark.parametrize("kind", FROM_FEATURES.values(), ids=FROM_FEATURES.keys())


def in_shards(folder: Path, audio: str = "flac", spec: PrepareSpec = SPEC) -> PrepareSpec:
    field = AudioField(audio) if spec is SPEC else FeatureField(spec.features)
    return replace(spec, shards=ShardStorage(folder, field))


def features(
    prepared: PreparedData, split: str = "train", spec: PrepareSpec = SPEC, rate_hz: int = 8000, perturb: bool = False
) -> list[np.ndarray]:
    found, extractor = [], LogMel(20, rate_hz) if spec is SPEC else spec.features
    for cut in prepared.cuts(split):
        found.append(read_features(extractor, SpeedPerturb((0.9,))(cut, random.Random(0)) if perturb else cut))
    return found


@kinds
def test_features_from_shards_are_those_from_files_to_the_last_digit(tmp_path, kind):
    files = run(tmp_path / "a", kind.recipe(), kind.spec)
    shards = run(tmp_path / "b", kind.recipe(), in_shards(tmp_path / "shards", spec=kind.spec))
    assert (files.mean, files.std, files.tokenizer.state()) == (shards.mean, shards.std, shards.tokenizer.state())
    assert files.splits == shards.splits
    for split in ("train", "dev", "test-x"):
        assert ids(files, split) == ids(shards, split)
        assert (files.cuts(split).durations == shards.cuts(split).durations).all()
        for options in kind.readings:
            found = [features(prepared, split, kind.spec, **options) for prepared in (files, shards)]
            for first, second in zip(*found, strict=True):
                assert first.dtype == second.dtype
                assert np.array_equal(first, second)
    kept = "recording" if kind.spec is SPEC else "features"
    assert [path.name for path in sorted((tmp_path / "shards" / "train").iterdir())] == [
        *("cuts.000000.jsonl.gz", "cuts.000001.jsonl.gz"),
        *(f"{kept}.000000.tar", f"{kept}.000001.tar"),
    ]
    assert kind.spec is not SPEC or {cut.start for cut in shards.cuts("train")} == {0.0}
    assert not list((tmp_path / "b").rglob("features")), "no features are stored twice"


def rewritten(make: Callable[[], np.ndarray], subtype: str | None = None) -> Recipe:
    """Return a recipe whose training audio is made anew."""

    def rewrite(folder: Path, splits: dict[str, list[Pair]]) -> None:
        for recording, _ in splits["train"]:
            soundfile.write(recording.sources[0].source, make(), 8000, subtype=subtype)

    return Recipe(rewrite)


@pytest.mark.parametrize(
    ("level", "subtype", "audio", "rounded"),
    [
        (1, "PCM_24", "flac", 0),
        (1, "FLOAT", "original", 0),
        (1, "PCM_U8", "flac", 0),
        (10, "FLOAT", "flac", 2**-16),
    ],
)
def test_audio_stays_as_it_is_unless_it_has_no_whole_samples(tmp_path, level, subtype, audio, rounded):
    recipe = rewritten(lambda: noise(1.0) * level, subtype)
    files = run(tmp_path / "a", recipe)
    shards = run(tmp_path / "b", recipe, in_shards(tmp_path / "shards", audio))
    for first, second in zip(files.cuts("train"), shards.cuts("train"), strict=True):
        assert np.abs(np.clip(first.load_audio(), -1, 1 - 2**-15) - second.load_audio()).max() <= rounded


def test_opus_keeps_the_length_and_most_of_the_sound(tmp_path):
    recipe = rewritten(lambda: 0.3 * np.sin(2 * np.pi * 440 * np.arange(8000) / 8000))
    files = run(tmp_path / "a", recipe)
    shards = run(tmp_path / "b", recipe, in_shards(tmp_path / "shards", "opus"))
    heard, stored = (next(iter(prepared.cuts("train"))).load_audio() for prepared in (files, shards))
    assert heard.shape == stored.shape
    assert np.corrcoef(heard[0], stored[0])[0, 1] > 0.98
    tars = [sum(file.stat().st_size for file in (tmp_path / "shards" / "train").glob("*.tar")), 3 * 16_000]
    assert tars[0] < tars[1]


def test_opus_refuses_a_rate_that_it_does_not_have(tmp_path):
    def rewrite(folder: Path, splits: dict[str, list[Pair]]) -> None:
        splits["dev"] = [utterance(folder, "odd", rate_hz=11_025)]

    with pytest.raises(ValueError, match=r"audio=opus stores 8000, .* Hz, and odd has 11025 Hz; choose"):
        run(tmp_path / "a", Recipe(rewrite), in_shards(tmp_path / "shards", "opus"))
    assert not list(tmp_path.rglob("*.tmp"))


def test_lhotse_reads_the_folder(tmp_path):
    prepared = run(tmp_path / "a", Recipe(), in_shards(tmp_path / "shards"))
    for split in ("train", "dev", "test-x"):
        found = CutSet.from_shar(in_dir=tmp_path / "shards" / split).to_eager()
        validate(found)
        for first, second in zip(prepared.cuts(split), found, strict=True):
            assert (first.id, first.duration) == (second.id, second.duration)
            assert [s.text for s in first.supervisions] == [s.text for s in second.supervisions]
            assert np.array_equal(first.load_audio(), second.load_audio())


@pytest.mark.parametrize("shard_size", [2, None])
@pytest.mark.parametrize("audio", ["flac", "original"])
def test_shards_of_lhotse_are_read_as_they_are(tmp_path, shard_size, audio):
    pairs = [utterance(tmp_path, f"long-{number}", duration_s=2.0, rate_hz=16_000) for number in range(3)]
    cuts = [
        recording.to_cut().truncate(offset=offset, duration=1.0).with_id(f"{recording.id}/{offset}")
        for recording, _ in pairs
        for offset in (0.25, 0.75)
    ]
    for cut in cuts:
        cut.supervisions = [SupervisionSegment(f"s-{cut.id}", cut.recording_id, 0.0, 1.0, text="ab", speaker="x")]
    with SharWriter(tmp_path, {"recording": audio}, shard_size=shard_size) as writer:
        for cut in cuts:
            writer.write(cut)
    (whole,) = import_manifests(tmp_path).splits.values()
    prepared = run(tmp_path / "data", lambda folder: Corpus({**Recipe()(folder).splits, "train": whole}))
    found = list(prepared.cuts("train"))
    assert [cut.supervisions[0].speaker for cut in found] == ["x"] * 6
    for cut, again in zip(cuts, found, strict=True):
        assert np.abs(cut.load_audio() - again.load_audio()).max() <= 2**-15
    assert set(prepared.shards) == {str(path) for path in tmp_path.glob("recording*.tar")}


def test_an_interrupted_call_is_continued_and_writes_the_same_bytes(tmp_path, monkeypatch):
    whole, parted = (in_shards(tmp_path / name) for name in ("whole", "parted"))
    run(tmp_path / "a", Recipe(), whole)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b", Recipe(), replace(parted, tokenizer_trainer=Killed()))
    assert not (tmp_path / "parted").exists()

    left = iter(range(2))
    encode = AudioField.encode

    def interrupted(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return encode(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(AudioField, "encode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "b", Recipe(), parted)
    assert not list(tmp_path.rglob("*.tmp"))
    kept = contents(tmp_path / "parted")
    assert {path.name for path in kept} >= {"recording.000000.tar"}
    prepared = run(tmp_path / "b", Recipe(), parted)
    now = contents(tmp_path / "parted")
    assert all(now[path] == content for path, content in kept.items())
    assert ids(prepared, "train") == ["train-0", "train-1", "train-2"]
    tars = [sorted((tmp_path / name).rglob("*.tar")) for name in ("whole", "parted")]
    assert [tar.read_bytes() for tar in tars[0]] == [tar.read_bytes() for tar in tars[1]]


@pytest.mark.parametrize(
    "name",
    ["precious.txt", "train/recording.000007.tar"],
)
def test_a_folder_with_anything_else_in_it_is_refused_and_stays_as_it_was(tmp_path, name):
    path = tmp_path / "shards" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"data\.storage\.dir: "):
        run(tmp_path / "a", Recipe(), in_shards(tmp_path / "shards"))
    assert [file for file in (tmp_path / "shards").rglob("*") if file.is_file()] == [path]
    assert path.read_text() == "mine"


def test_shards_of_other_data_are_not_overwritten(tmp_path):
    run(tmp_path / "a", Recipe(), in_shards(tmp_path / "shards"))
    written = contents(tmp_path / "shards")
    other = replace(in_shards(tmp_path / "shards"), text=TextNormalizer("upper"))
    with pytest.raises(ValueError, match=r"recording\.000000\.tar belongs to other data"):
        run(tmp_path / "a", Recipe(), other, spec_name="other")
    assert contents(tmp_path / "shards") == written


def test_a_shard_that_was_removed_is_written_again_and_one_that_has_changed_is_not(tmp_path):
    spec = in_shards(tmp_path / "shards")
    run(tmp_path / "a", Recipe(), spec)
    first, second = sorted((tmp_path / "shards" / "train").glob("*.tar"))
    whole = second.read_bytes()
    second.unlink()
    run(tmp_path / "a", Recipe(), spec, spec_name="other")
    assert second.read_bytes() == whole
    first.write_bytes(first.read_bytes().replace(b"train-0", b"train-9"))
    with pytest.raises(ValueError, match=r"recording\.000000\.tar is missing, or differs from "):
        run(tmp_path / "a", Recipe(), spec, spec_name="third")
    assert second.read_bytes() == whole


def test_a_shard_of_audio_that_has_changed_since_is_not_taken(tmp_path):
    def make(folder: Path) -> Corpus:
        return Corpus({split: manifests(utterance(tmp_path, split)) for split in ("train", "dev")})

    for state in ("corpus", "corpus", "corpus-1"):
        with pytest.raises(ValueError, match="changed") if "-" in state else contextlib.nullcontext():
            prepare(tmp_path / "data", state, make, in_shards(tmp_path / "shards"), "spec")


def test_audio_that_cannot_be_decoded_is_dropped_and_named(tmp_path):
    def spoil(folder: Path, splits: dict[str, list[Pair]]) -> None:
        path = folder / "broken.flac"
        soundfile.write(path, noise(1.0), 8000)
        content = bytearray(path.read_bytes())
        content[2000:6000] = bytes(4000)  # the header and the end are good
        recording = Recording.from_file(path, recording_id="broken")
        path.write_bytes(content)
        splits["dev"].append((recording, SupervisionSegment("broken", "broken", 0, 1.0, text="ab")))

    prepared = run(tmp_path / "a", Recipe(spoil), in_shards(tmp_path / "shards"))
    assert ids(prepared, "dev") == ["dev-0", "dev-1"]
    assert dropped(prepared)["dev", "broken"].startswith("unreadable audio: ")


def test_ids_that_are_paths_are_kept_for_training_and_for_who_reads_the_folder(tmp_path):
    def rename(folder: Path, splits: dict[str, list[Pair]]) -> None:
        recording, segment = splits["train"][0]
        splits["train"][0] = (replace(recording, id="../a"), replace(segment, id="../a", recording_id="../a"))

    prepared = run(tmp_path / "a", Recipe(rename), in_shards(tmp_path / "shards"))
    assert ids(prepared, "train")[0] == "../a"
    assert import_manifests(tmp_path / "shards").splits["train"].supervisions[0].id == "../a"
    assert len(list(CutSet.from_shar(in_dir=tmp_path / "shards" / "train"))) == 3


@of_features
def test_prepared_cuts_need_nothing_but_the_shards(tmp_path, kind):
    spec = in_shards(tmp_path / "shards", spec=kind.spec)
    prepared = run(tmp_path / "a", kind.recipe(), spec)
    kept = features(prepared, spec=spec)
    for file in [*tmp_path.rglob("*.wav"), *tmp_path.rglob("*.npy")]:
        file.unlink()
    assert all(np.array_equal(*pair) for pair in zip(kept, features(prepared, spec=spec), strict=True))
    assert set(prepared.shards) == {str(path) for path in (tmp_path / "shards").rglob("features.*.tar")}


@of_features
def test_the_folder_is_a_corpus_of_its_own_with_the_same_numbers(tmp_path, kind):
    spec = in_shards(tmp_path / "shards", spec=kind.spec)
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
        pairs = zip(features(prepared, split, spec), features(found, split, again), strict=True)
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
def test_shards_of_features_of_lhotse_are_read_as_they_are(tmp_path, shard_size):
    (tmp_path / "shar").mkdir()
    cuts = of_lhotse(tmp_path / "shar", shard_size=shard_size)
    (whole,) = import_manifests(tmp_path / "shar").splits.values()
    spec = FEATURES_SPEC
    prepared = run(tmp_path / "data", lambda folder: Corpus({**FeatureRecipe()(folder).splits, "train": whole}), spec)
    assert [cut.supervisions[0].speaker for cut in prepared.cuts("train")] == ["x"] * 5
    for cut, found in zip(cuts, features(prepared, spec=spec), strict=True):
        assert np.array_equal(cut.load_features().astype(np.float32), found)
    assert set(prepared.shards) == {str(path) for path in (tmp_path / "shar").glob("features*.tar")}
