"""What `prepare` keeps, what it drops, and that it says so."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import SupervisionSegment

from asr.data.manifests.corpus import Dropped
from tests.data.corpora import (
    PRECOMPUTED,
    RATE_HZ,
    SPEC,
    Pair,
    Recipe,
    dropped,
    ids,
    noise,
    printed,
    run,
    utterance,
)


def unlink(path: Path) -> None:
    path.unlink()


def not_audio(path: Path) -> None:
    path.write_bytes(b"not audio" * 100)


def no_samples(path: Path) -> None:
    soundfile.write(path, np.zeros(0), RATE_HZ)


def not_a_number(path: Path) -> None:
    samples, _ = soundfile.read(path)
    samples[500] = np.nan
    soundfile.write(path, samples, RATE_HZ, subtype="FLOAT")


def lost_in_between(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 6000] = bytes(6000)
    path.write_bytes(content)


def half(path: Path) -> None:
    soundfile.write(path, noise(0.5), RATE_HZ)


BAD_AUDIO = {
    "missing audio": unlink,
    "unreadable audio": not_audio,
    "empty audio: ": no_samples,
    "truncated audio": half,
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
    def spoil(folder: Path, splits: dict[str, list[Pair]]) -> None:
        splits[split].append(utterance(folder, "bad", **BAD_CUTS[reason]))

    prepared = run(tmp_path, Recipe(spoil))
    if split == "test-x" and reason in NOT_IN_TESTS:
        assert ids(prepared, split) == ["test-x-0", "bad"]
        assert dropped(prepared) == {}
    else:
        assert {key: found.partition(":")[0] for key, found in dropped(prepared).items()} == {(split, "bad"): reason}
        assert f"dropped from {split}: 1 × {reason}" in printed(prepared)
        assert "bad" not in ids(prepared, split)


def test_what_is_just_within_the_limits_is_kept(tmp_path):
    def add(folder: Path, splits: dict[str, list[Pair]]) -> None:
        splits["train"] += [
            utterance(folder, "short", 0.1),
            utterance(folder, "long", 3.0),
            utterance(folder, "full", 1.0, text="ab" * 12 + "a"),  # 100 frames leave 25
            utterance(folder, "equal", 1.0, text="ab" * 11 + "aa"),  # 24 tokens and a blank
            utterance(folder, "more", 1.0, text="ab" * 11 + "aaa"),  # 25 tokens and two blanks
        ]

    prepared = run(tmp_path, Recipe(add))
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


def without(name: str) -> Callable[[Path, dict[str, list[Pair]]], None]:
    def change(folder: Path, splits: dict[str, list[Pair]]) -> None:
        del splits[name]

    return change


def empty_split(folder: Path, splits: dict[str, list[Pair]]) -> None:
    splits["test-x"] = []


def no_recording(folder: Path, splits: dict[str, list[Pair]]) -> None:
    splits["dev"][0][1].recording_id = "elsewhere"


def beyond_the_end(folder: Path, splits: dict[str, list[Pair]]) -> None:
    splits["dev"][0][1].duration = 1.6


def twice(folder: Path, splits: dict[str, list[Pair]]) -> None:
    splits["dev"].append(splits["dev"][0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("train"), "has the splits dev, test-x; it needs 'train'"),
        (without("dev"), "has the splits train, test-x"),
        (empty_split, r"split 'test-x' of the corpus is empty; the first reasons: \['missing audio: x'\]"),
        (no_recording, "split 'dev' of the corpus: dev-0: missing recording"),
        (beyond_the_end, "split 'dev' of the corpus: dev-0: outside its recording"),
        (twice, "split 'dev' .* duplicated"),
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
