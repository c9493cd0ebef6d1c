"""What prepare keeps and drops, does once, does again after an interruption, and measures."""

import os
import re
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import SupervisionSegment

import asr.data.preparation.prepare
from asr.data.features import PrecomputedFeatures
from asr.data.loading.loader import SpeechDataset
from asr.data.manifests.corpus import Corpus, Dropped
from asr.data.preparation.prepare import current_folder, prepare
from asr.data.preparation.prepared import PreparedData
from asr.text.tokenizer import CharacterTokenizer, CharacterTokenizerTrainer
from recipes.custom.prepare import prepare_custom
from tests.data.corpora import (
    NUM_MELS,
    PRECOMPUTED,
    RATE_HZ,
    SPEC,
    Killed,
    Pair,
    Recipe,
    contents,
    dropped,
    ids,
    noise,
    printed,
    run,
    utterance,
)
from tests.data.feature_corpora import FEATURES_SPEC, WIDTH, FeatureRecipe, file_of, matrix, stored_utterance
from werdict.normalization import TextNormalizer


def test_prepared_data_holds_what_the_corpus_holds(tmp_path):
    prepared = run(tmp_path, Recipe(notes=("ünlü: noise [only]",)))
    assert ids(prepared, "train") == ["train-0", "train-1", "train-2"]
    assert ids(prepared, "dev") == ["dev-0", "dev-1"]
    assert [prepared.names(kind) for kind in ("train", "dev", "test")] == [["train"], ["dev"], ["test-x"]]
    assert prepared.tokenizer.pieces[2:] == ["a", "b"]
    assert prepared.fingerprint == "corpus/spec"
    assert prepared.notes == ("ünlü: noise [only]",)
    assert dropped(prepared) == {}
    assert "note: ünlü: noise [only]" in printed(prepared)


@pytest.mark.parametrize(("make", "spec"), [(Recipe, PRECOMPUTED), (FeatureRecipe, FEATURES_SPEC)])
def test_a_second_call_does_no_work_and_another_spec_uses_the_manifests_again(tmp_path, make, spec):
    recipe = make()
    first = run(tmp_path, recipe, spec)
    before = contents(tmp_path)
    again = run(tmp_path, recipe, spec)
    assert contents(tmp_path) == before
    assert (again.mean, again.std, again.splits) == (first.mean, first.std, first.splits)
    assert again.tokenizer.state() == first.tokenizer.state()
    other = run(tmp_path, recipe, replace(spec, text=TextNormalizer("upper")), "other")
    assert ids(other, "train") == ids(first, "train")
    assert len(recipe.folders) == 1


def test_a_call_killed_while_building_continues_behind_the_corpus(tmp_path):
    recipe = Recipe()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, recipe, replace(SPEC, tokenizer_trainer=Killed()))
    assert not (tmp_path / "corpus" / "spec").exists()
    stale = tmp_path / "corpus" / "spec.partial"
    (stale / "features").mkdir(parents=True, exist_ok=True)
    (stale / "cuts_train.jsonl.gz").write_bytes(b"half")
    (stale / "left.over").write_bytes(b"")
    prepared = run(tmp_path, recipe)
    assert len(recipe.folders) == 1
    assert ids(prepared, "train") == ["train-0", "train-1", "train-2"]
    assert not stale.exists()
    assert not (prepared.folder / "left.over").exists()


def test_a_corpus_killed_before_its_end_is_made_again(tmp_path):
    def killed(folder: Path) -> Corpus:
        (folder / "recordings_train.jsonl.gz").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, killed)
    assert ids(run(tmp_path, Recipe()), "train") == ["train-0", "train-1", "train-2"]


def test_a_call_that_waited_for_another_does_its_work_no_second_time(tmp_path, monkeypatch):
    recipe, waiting, builds = Recipe(), threading.Event(), []
    monkeypatch.setattr(asr.data.preparation.prepare.console, "print", lambda *args, **kwargs: waiting.set())
    build = asr.data.preparation.prepare.build_prepared
    monkeypatch.setattr(
        asr.data.preparation.prepare, "build_prepared", lambda *args: builds.append(args) or build(*args)
    )
    with ThreadPoolExecutor(1) as pool:
        others = []

        def first(folder: Path) -> Corpus:
            others.append(pool.submit(run, tmp_path, recipe))
            assert waiting.wait(timeout=600)
            assert not recipe.folders
            return recipe(folder)

        prepared = run(tmp_path, first)
        assert others[0].result(timeout=600).splits == prepared.splits
    assert len(recipe.folders) == 1
    assert len(builds) == 1


class FirstWords(CharacterTokenizer):
    def decode(self, ids):
        return super().decode(ids).partition(" ")[0]


class FirstWordsTrainer:
    def train(self, texts: Iterable[str]) -> CharacterTokenizer:
        return FirstWords(CharacterTokenizerTrainer().train(texts).pieces)


def test_a_tokenizer_that_changes_transcripts_is_refused_with_examples(tmp_path):
    def change(folder, splits):
        splits["train"].append(utterance(folder, "train-of-two-words", text="ab ba"))

    with pytest.raises(ValueError, match=r"1 of 4 .*'ab ba' → 'ab'"):
        run(tmp_path, Recipe(change), replace(SPEC, tokenizer_trainer=FirstWordsTrainer()))


@pytest.mark.parametrize(("speaker", "num_seen"), [("anna", 1), ("cem", None)])
def test_speakers_of_other_splits_that_training_has_are_counted(tmp_path, speaker, num_seen):
    def name_speakers(folder: Path, splits: dict[str, list[Pair]]) -> None:
        for pairs, name in ((splits["train"], "anna"), (splits["test-x"], speaker)):
            for _, segment in pairs:
                segment.speaker = name

    prepared = run(tmp_path, Recipe(name_speakers))
    assert prepared.splits["test-x"].get("num_seen_speakers") == num_seen
    assert "num_seen_speakers" not in prepared.splits["train"] | prepared.splits["dev"]


def test_the_table_counts_utterances_hours_and_speakers(tmp_path):
    def name_speakers(folder: Path, splits: dict[str, list[Pair]]) -> None:
        for split, speakers in {"train": ("anna", "bea", "anna"), "dev": ("cem", None)}.items():
            for (_, segment), speaker in zip(splits[split], speakers, strict=True):
                segment.speaker = speaker
        splits["train"].append(utterance(folder, "long", 2.5))

    prepared = run(tmp_path, Recipe(name_speakers))
    counts = {"num_utterances": 4, "hours": round(5.5 / 3600, 4), "num_speakers": 2, "num_dropped": 0}
    assert prepared.splits["train"] == counts
    assert [prepared.splits[name]["num_speakers"] for name in ("dev", "test-x")] == [1, 0]
    rows = [line.replace("│", " ").split() for line in printed(prepared).splitlines()]
    assert ["train", "4", "0.00", "2", "0"] in rows
    assert ["test-x", "1", "0.00", "?", "0"] in rows
    assert "vocabulary: 4 tokens" in printed(prepared)
    assert "dropped from" not in printed(prepared)


def test_statistics_are_those_of_the_training_features(tmp_path):
    def add(folder: Path, splits: dict[str, list[Pair]]) -> None:
        splits["train"].append(utterance(folder, "more", 0.5))
        soundfile.write(folder / "dev-0.wav", noise(1.0) * 5, RATE_HZ)

    prepared = run(tmp_path, Recipe(add))
    frames = np.concatenate([SPEC.features(cut) for cut in prepared.cuts("train")]).astype(np.float64)
    assert frames.shape == (350, NUM_MELS)
    np.testing.assert_allclose(prepared.mean, frames.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(prepared.std, frames.std(axis=0), atol=1e-6)


def test_features_that_never_change_have_a_deviation_to_divide_by(tmp_path):
    def silence(folder: Path, splits: dict[str, list[Pair]]) -> None:
        for recording, _ in splits["train"]:
            soundfile.write(recording.sources[0].source, np.zeros(RATE_HZ), RATE_HZ)

    prepared = run(tmp_path, Recipe(silence), replace(SPEC, limits=replace(SPEC.limits, keep_silent=True)))
    assert np.isfinite(prepared.mean).all()
    assert set(prepared.std) == {1e-3}


@pytest.mark.parametrize("rate_hz", [RATE_HZ, 11_025, 48_000])
def test_stored_features_are_those_that_would_be_computed(tmp_path, rate_hz):
    computed = run(tmp_path, Recipe(more={"train": [{"name": "other", "duration_s": 1.2345, "rate_hz": rate_hz}]}))
    stored = run(tmp_path, Recipe(), PRECOMPUTED, "stored")
    assert not (stored.folder.parent / "stored.partial").exists()
    for split in ("train", "dev", "test-x"):
        for plain, cut in zip(computed.cuts(split), stored.cuts(split), strict=True):
            assert cut.id == plain.id
            assert Path(cut.features.storage_path) == stored.folder / "features"
            np.testing.assert_array_equal(cut.load_features(), SPEC.features(plain))
    assert (stored.mean, stored.std) == (computed.mean, computed.std)
    assert not (computed.folder / "features").exists()


def write(path: Path, duration_s: float = 1.0, seed: int = 0) -> None:
    soundfile.write(path, noise(duration_s, seed), RATE_HZ)


def leads_elsewhere(path: Path) -> None:
    write(path.with_name("other.wav"), 1.5)
    path.unlink()
    path.symlink_to("other.wav")


# what becomes of one of three files, before and after they are prepared: how many have changed then, and their seconds
CHANGES = {
    "replaced": (write, lambda path: write(path, seed=9), 1, [1.0, 1.0, 1.0]),
    "longer": (write, lambda path: write(path, 2.0), 1, [1.0, 1.0, 2.0]),
    "shorter": (write, lambda path: write(path, 0.5), 1, [0.5, 1.0, 1.0]),
    "damaged": (write, lambda path: path.write_bytes(b"no audio"), 1, [1.0, 1.0]),
    "touched": (write, os.utime, 1, [1.0, 1.0, 1.0]),
    "link": (write, leads_elsewhere, 1, [1.0, 1.0, 1.5]),
    "removed": (write, Path.unlink, 0, [1.0, 1.0, 1.0]),
    "restored": (lambda path: None, write, 1, [1.0, 1.0, 1.0]),
    "repaired": (lambda path: path.write_bytes(b""), write, 1, [1.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("spec", [SPEC, PRECOMPUTED], ids=["computed", "stored"])
@pytest.mark.parametrize("change", CHANGES)
def test_audio_that_has_changed_is_prepared_again_and_the_former_data_stay(tmp_path, capsys, monkeypatch, change, spec):
    first, later, num_changed, durations_s = CHANGES[change]
    paths = {f"{split}.wav": split.rstrip("123") for split in ("train1", "train2", "train3", "dev", "test")}
    for name in paths:
        write(tmp_path / name)
    soundfile.write(tmp_path / "train2.wav", np.stack([np.zeros(RATE_HZ), noise(1.0)], axis=1), RATE_HZ)
    soundfile.write(tmp_path / "test.wav", np.zeros(RATE_HZ), RATE_HZ)
    (tmp_path / "train1.wav").unlink()
    first(path := tmp_path / "train1.wav")
    rows = [f"{name}\thi\t{split}" for name, split in paths.items()]
    (tmp_path / "my.tsv").write_text("\n".join(["audio\ttext\tsplit", *rows, ""]))
    for each in tmp_path.glob("*.wav"):
        os.utime(each, (1, 1))

    def prepared(data: str = "data") -> PreparedData:
        folder = current_folder(tmp_path / data / "corpus")
        return prepare(folder.parent, folder.name, partial(prepare_custom, source=f"{tmp_path}/my.tsv"), spec, "s")

    before = prepared()
    kept = contents(before.folder)
    capsys.readouterr()
    later(path)
    opened, init = set(), soundfile.SoundFile.__init__
    with monkeypatch.context() as patched:
        patched.setattr(soundfile.SoundFile, "__init__", lambda *args: opened.add(Path(args[1]).name) or init(*args))
        after = prepared()
    # what is computed in training is computed of a sample here, for the statistics
    assert opened == ({path.name} if spec is PRECOMPUTED else {f"train{n}.wav" for n in (1, 2, 3)}) or not num_changed
    assert (f"{num_changed} of 5" in capsys.readouterr().out) == (num_changed > 0) == (after.folder != before.folder)
    assert sorted(cut.duration for cut in after.cuts("train")) == durations_s
    for cut in after.cuts("train") if change != "removed" and spec is PRECOMPUTED else ():
        np.testing.assert_array_equal(cut.load_features(), SPEC.features(cut.drop_features()))
    assert prepared().folder == after.folder
    assert contents(before.folder) == kept
    folders = [data.folder.parent for data in ((after, prepared("new")) if num_changed else ())]
    files = [{path.relative_to(f): content for path, (_, content) in contents(f).items()} for f in folders]
    assert files[:1] == files[1:]


def test_several_rates_are_said_once_and_by_the_table(tmp_path, caplog):
    more = {split: [{"name": f"{split}-other", "rate_hz": 16_000}] for split in ("train", "dev", "test-x")}
    (note,) = [note for note in run(tmp_path, Recipe(more=more)).notes if "16000 Hz (3)" in note]
    assert "8000 Hz (6)" in note
    assert caplog.records == []


@pytest.mark.parametrize("level", [0.0, 1e-5])
def test_silence_is_left_out_of_training_and_counted_in_tests(tmp_path, level):
    def add(folder: Path, splits: dict[str, list[Pair]]) -> None:
        for name, split in splits.items():
            split.append(utterance(folder, f"silent-{name}"))
            soundfile.write(folder / f"silent-{name}.wav", np.full(RATE_HZ, level), RATE_HZ)

    table = printed(prepared := run(tmp_path, Recipe(add)))
    assert {key: reason.partition(":")[0] for key, reason in dropped(prepared).items()} == {
        (split, f"silent-{split}"): "silent" for split in ("train", "dev")
    }
    assert ("dropped from train: 1 × silent" in table, "kept in test-x: 1 × silent" in table) == (True, True)
    kept = run(tmp_path, Recipe(add), replace(SPEC, limits=replace(SPEC.limits, keep_silent=True)), "kept")
    assert (len(kept.cuts("train")), dropped(kept)) == (4, {})


def not_a_number(path: Path) -> None:
    samples, _ = soundfile.read(path)
    samples[500] = np.nan
    soundfile.write(path, samples, RATE_HZ, subtype="FLOAT")


def lost_in_between(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 6000] = bytes(6000)
    path.write_bytes(content)


BAD_AUDIO = {
    "missing audio": Path.unlink,
    "unreadable audio": lambda path: path.write_bytes(b"not audio" * 100),
    "empty audio: ": lambda path: soundfile.write(path, np.zeros(0), RATE_HZ),
    "truncated audio": lambda path: soundfile.write(path, noise(0.5), RATE_HZ),
}
BAD_CUTS = {
    "empty text": {"text": " \u200b"},
    "shorter than 0.1 s": {"duration_s": 0.09},
    "longer than 3.0 s": {"duration_s": 3.01},
    "too short for its transcript": {"text": "ab" * 13},
}
# a test set is decoded whole
NOT_IN_TESTS = ("longer than 3.0 s", "too short for its transcript")


@pytest.mark.parametrize("split", ["train", "test-x"])
@pytest.mark.parametrize("reason", BAD_AUDIO)
def test_bad_audio_is_dropped_and_said(tmp_path, split, reason):
    def spoil(folder: Path, splits: dict[str, list[Pair]]) -> None:
        splits[split].append(utterance(folder, "bad"))
        BAD_AUDIO[reason](folder / "bad.wav")

    prepared = run(tmp_path, Recipe(spoil))
    kind = reason.removesuffix(": ")
    assert {key: found.partition(":")[0] for key, found in dropped(prepared).items()} == {(split, "bad"): kind}
    assert f"dropped from {split}: 1 × {kind}" in printed(prepared)
    assert "bad" not in ids(prepared, split)
    assert prepared.splits[split]["num_dropped"] == 1


@pytest.mark.parametrize("split", ["train", "test-x"])
@pytest.mark.parametrize("reason", BAD_CUTS)
def test_unusable_cuts_are_dropped_and_said(tmp_path, split, reason):
    prepared = run(tmp_path, Recipe(more={split: [{"name": "bad", **BAD_CUTS[reason]}]}))
    if split == "test-x" and reason in NOT_IN_TESTS:
        assert ids(prepared, split) == ["test-x-0", "bad"]
        assert dropped(prepared) == {}
    else:
        assert {key: found.partition(":")[0] for key, found in dropped(prepared).items()} == {(split, "bad"): reason}
        assert f"dropped from {split}: 1 × {reason}" in printed(prepared)
        assert "bad" not in ids(prepared, split)


def test_what_is_just_within_the_limits_is_kept(tmp_path):
    texts = {
        "full": "ab" * 12 + "a",  # 100 frames leave 25
        "equal": "ab" * 11 + "aa",  # 24 tokens and a blank
        "more": "ab" * 11 + "aaa",  # 25 tokens and two blanks
    }
    more = [{"name": "short", "duration_s": 0.1}, {"name": "long", "duration_s": 3.0}]
    more += [{"name": name, "text": text} for name, text in texts.items()]
    prepared = run(tmp_path, Recipe(more={"train": more}))
    assert ids(prepared, "train")[3:] == ["short", "long", "full", "equal"]
    assert dropped(prepared) == {("train", "more"): "too short for its transcript: 25 frames, 27 needed"}


def test_an_utterance_may_have_an_id_that_no_file_could_have(tmp_path):
    name = f"../../ünlü 你好 {'a' * 300}"

    def add(folder: Path, splits: dict[str, list[Pair]]) -> None:
        recording, segment = utterance(folder, "file")
        segment.id = name
        splits["train"].append((recording, segment))
        splits["dev"].append((recording, SupervisionSegment(name, "file", 0, 0.05, text="a")))

    prepared = run(tmp_path, Recipe(add), PRECOMPUTED)
    assert ids(prepared, "train")[3] == name
    assert dropped(prepared) == {("dev", name): "shorter than 0.1 s"}


def beyond_the_end(folder: Path, splits: dict[str, list[Pair]]) -> None:
    splits["dev"][0][1].duration = 1.6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _, splits: splits.pop("train"), "has the splits dev, test-x; it needs 'train'"),
        (lambda _, splits: splits.pop("dev"), "has the splits train, test-x"),
        (
            lambda _, splits: splits["test-x"].clear(),
            r"split 'test-x' of the corpus is empty; the first reasons: \['missing audio: x'\]",
        ),
        (
            lambda _, splits: setattr(splits["dev"][0][1], "recording_id", "elsewhere"),
            "split 'dev' of the corpus: dev-0: missing recording",
        ),
        (beyond_the_end, "split 'dev' of the corpus: dev-0: outside its recording"),
        (lambda _, splits: splits["dev"].append(splits["dev"][0]), "split 'dev' .* duplicated"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused_before_it_is_kept(tmp_path, change, message):
    recipe = Recipe(change, dropped=[Dropped("test-x", "x", "missing audio: x")])
    with pytest.raises(ValueError, match=message):
        run(tmp_path, recipe)
    assert list(tmp_path.rglob("*.json*")) == []
    assert ids(run(tmp_path, Recipe()), "dev") == ["dev-0", "dev-1"]


@pytest.mark.parametrize(("split", "reason"), [("dev", "too short for its transcript"), ("test-x", "empty text")])
def test_a_split_of_which_nothing_is_left_is_refused_with_the_reasons(tmp_path, split, reason):
    def spoil(folder: Path, splits: dict[str, list[Pair]]) -> None:
        splits[split] = [utterance(folder, "bad", **BAD_CUTS[reason])]

    with pytest.raises(ValueError, match=f"nothing is left of split '{split}'.*bad: {reason}"):
        run(tmp_path, Recipe(spoil))
    # another encoder may leave frames enough
    assert (tmp_path / "corpus" / "spec").exists() == reason.startswith("too short")


@pytest.mark.parametrize(
    ("spoil", "suffix", "duration_s", "said"),
    [(not_a_number, "wav", 1.0, "not finite"), (lost_in_between, "flac", 3.0, "flac decoder")],
)
@pytest.mark.parametrize(("spec", "splits"), [(SPEC, ["train"]), (PRECOMPUTED, ["train", "dev", "test-x"])])
def test_audio_that_only_decoding_finds_bad_spoils_neither_statistics_nor_stored_features(
    tmp_path, spoil, suffix, duration_s, said, spec, splits
):
    def add(folder: Path, found: dict[str, list[Pair]]) -> None:
        for split in splits:
            pair = utterance(folder, f"{split}-bad", duration_s, suffix=suffix)
            spoil(Path(pair[0].sources[0].source))
            found[split].append(pair)

    prepared = run(tmp_path, Recipe(add), spec)
    reasons = dropped(prepared)
    assert list(reasons) == [(split, f"{split}-bad") for split in splits]
    assert all(reason.startswith("unreadable audio: ") and said in reason for reason in reasons.values())
    clean = run(tmp_path / "clean", Recipe(), spec)
    assert (prepared.mean, prepared.std) == (clean.mean, clean.std)
    for split in clean.splits:
        assert ids(prepared, split) == ids(clean, split)
        assert prepared.splits[split]["num_utterances"] == clean.splits[split]["num_utterances"]


def test_features_without_audio_become_prepared_data_and_batches(tmp_path):
    prepared = run(tmp_path, FeatureRecipe(), FEATURES_SPEC)
    assert ids(prepared, "train") == ["train-0", "train-1", "train-2"]
    assert prepared.splits["train"]["hours"] == round(3.0 / 3600, 4)
    assert prepared.tokenizer.pieces[2:] == ["a", "b"]
    assert dropped(prepared) == {}
    frames = np.concatenate([matrix(100, seed=7)] * 3).astype(np.float64)
    np.testing.assert_allclose(prepared.mean, frames.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(prepared.std, frames.std(axis=0), atol=1e-6)
    batch = SpeechDataset(FEATURES_SPEC.features, prepared.tokenizer)[(0, list(prepared.cuts("dev")))]
    assert batch.num_frames.tolist() == [100, 100]
    assert batch.audio_s == 2.0
    np.testing.assert_array_equal(batch.features[0], matrix(100, seed=5).astype(np.float32))


def nan_in_a_frame(pair: Pair) -> None:
    frames = matrix(100)
    frames[70, 2] = np.nan
    np.save(file_of(pair[0]), frames)


def other_shift(pair: Pair) -> None:
    np.save(file_of(pair[0]), matrix(50))
    pair[0].num_frames, pair[0].frame_shift = 50, 0.02


def other_width(pair: Pair) -> None:
    np.save(file_of(pair[0]), np.zeros((100, 2)))
    pair[0].num_features = 2


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda pair: file_of(pair[0]).unlink(), "missing features: "),
        (lambda pair: np.save(file_of(pair[0]), matrix(90)), "unreadable features: .*shape \\(90, 5\\)"),
        (other_width, "unreadable features: .*shape \\(100, 2\\)"),
        (nan_in_a_frame, "unreadable features: .*not finite"),
        (other_shift, "unreadable features: .*every 20 ms"),
        (
            lambda pair: np.save(file_of(pair[0]), np.full((100, WIDTH), None), allow_pickle=True),
            "unreadable features: .*allow_pickle=False",
        ),
        (lambda pair: setattr(pair[1], "text", "ab" * 20), "too short for its transcript: 25 frames, 40 needed"),
    ],
)
def test_features_that_cannot_be_trained_on_are_dropped_with_the_reason(tmp_path, spoil, reason):
    def change(folder: Path, splits: dict[str, list[Pair]]) -> None:
        splits["train"].append(stored_utterance(folder, "bad"))
        spoil(splits["train"][-1])

    prepared = run(tmp_path, FeatureRecipe(change), FEATURES_SPEC)
    assert ids(prepared, "train") == ["train-0", "train-1", "train-2"]
    assert list(dropped(prepared)) == [("train", "bad")]
    assert re.match(reason, dropped(prepared)["train", "bad"])


def test_features_lost_after_preparing_are_skipped_and_named(tmp_path):
    prepared = run(tmp_path, FeatureRecipe(), FEATURES_SPEC)
    cuts = list(prepared.cuts("train"))
    file_of(cuts[1].features).unlink()
    batch = SpeechDataset(FEATURES_SPEC.features, prepared.tokenizer)[(0, cuts)]
    assert batch.ids == ("train-0", "train-2")
    assert [name for name, _ in batch.skipped] == ["train-1"]


@pytest.mark.parametrize(
    ("recipe", "features", "message"),
    [
        (FeatureRecipe(), SPEC.features, "features=precomputed data.num_features=5"),
        (Recipe(), PrecomputedFeatures(WIDTH), "choose features=log_mel"),
        (FeatureRecipe(), PrecomputedFeatures(80), "data.num_features=5"),
        (FeatureRecipe(), PrecomputedFeatures(WIDTH, 20.0), "every 20 ms"),
    ],
)
def test_features_that_cannot_be_had_are_refused_before_any_is_read(tmp_path, monkeypatch, recipe, features, message):
    monkeypatch.setattr("asr.data.preparation.cuts.check_cuts", lambda *_: pytest.fail("cuts were looked at"))
    with pytest.raises(ValueError, match=message):
        run(tmp_path, recipe, replace(SPEC, features=features))


def test_manifests_of_features_that_contradict_are_refused_before_they_are_kept(tmp_path):
    with pytest.raises(ValueError, match="dev-0: outside its recording"):
        run(tmp_path, FeatureRecipe(beyond_the_end), FEATURES_SPEC)
    assert list(tmp_path.rglob("*.json*")) == []
