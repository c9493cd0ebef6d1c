"""Which utterances of a user's recordings become dev and test."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import Recording, SupervisionSegment

from asr.recipes.custom.prepare import prepare_custom, split_off
from tests.data.corpora import json_lines

FRACTIONS = {"test": 0.1, "dev": 0.1}


def said_by(**counts: int) -> list[SupervisionSegment]:
    return [
        SupervisionSegment(f"{speaker}-{index}", "r", 0, 1 + index % 5, text="a b c", speaker=speaker)
        for speaker, count in counts.items()
        for index in range(count)
    ]


def speakers(*counts: float) -> dict[str, int]:
    return {f"speaker{index:04}": int(count) for index, count in enumerate(counts)}


@pytest.mark.parametrize(
    ("counts", "whole"),
    [
        (speakers(*[100] * 10), True),
        (speakers(*[2] * 1000), True),
        (speakers(*(1000 / rank for rank in range(1, 101))), True),  # Zipf
        (speakers(725, 677, *range(1, 23), 36, 36), False),
        (speakers(2000, *[3] * 100), False),
        (speakers(2000, *[30] * 9), False),
        (speakers(*[200] * 4), False),
        (speakers(1500), False),
    ],
    ids=["equal", "many tiny", "Zipf", "two giants", "giant and tiny", "giant and a few", "four", "one"],
)
def test_held_out_splits_are_large_enough_and_never_too_large_and_voices_are_shared_only_if_they_must(counts, whole):
    everything = said_by(**counts)
    total_s = sum(segment.duration for segment in everything)
    for seed in range(5):
        splits, notes = split_off({"all": everything}, FRACTIONS, seed)
        assert sorted(one.id for found in splits.values() for one in found) == sorted(one.id for one in everything)
        voices = {name: {segment.speaker for segment in found} for name, found in splits.items()}
        assert len(voices["train"]) >= 0.6 * len(counts)
        for kind, note in zip(("test", "dev"), notes, strict=True):
            assert 0.08 <= sum(segment.duration for segment in splits[kind]) / total_s <= 0.15
            assert len(splits[kind]) >= 100  # and 300 words
            shared = voices[kind] & voices["train"]
            assert all(counts[name] >= max(counts.values()) / 2 for name in shared)
            assert whole == (not shared) == ("in train too" not in note)
            assert kind in note
            assert f"{len(splits[kind])} utterances" in note


def test_small_corpora_give_what_they_can_and_it_is_said_how_little_that_shows():
    for num, most in ((30, 0.15), (150, 0.15), (4, 0.5)):
        splits, notes = split_off({"all": said_by(anna=num)}, FRACTIONS, 1)
        total_s = sum(segment.duration for found in splits.values() for segment in found)
        for kind in ("dev", "test"):
            assert 0 < sum(segment.duration for segment in splits[kind]) <= most * total_s
        assert splits["train"]
        expected = [f"±{98 / (3 * len(splits[kind])) ** 0.5:.2g} " for kind in ("test", "dev")]
        assert all(points in note for points, note in zip(expected, notes, strict=True))


def test_utterances_without_a_speaker_are_held_out_one_by_one_only_if_named_ones_do_not_do():
    unnamed = [SupervisionSegment(f"{index}", "r", 0, 2, text="a b c") for index in range(1000)]
    for named, whole in ((said_by(**speakers(*[10] * 4)), False), (said_by(**speakers(*[50] * 20)), True)):
        splits, notes = split_off({"all": [*unnamed, *named]}, FRACTIONS, 1)
        assert all(("in train too" in note) != whole for note in notes)
        assert all((None in {segment.speaker for segment in splits[kind]}) != whole for kind in ("dev", "test"))


def test_only_what_is_missing_is_split_off():
    train, mine = said_by(**speakers(*[100] * 10)), said_by(x=3)
    splits, notes = split_off({"train": train, "test-mine": mine}, FRACTIONS, 1)
    assert set(splits) == {"train", "dev", "test-mine"}
    assert splits["test-mine"] == mine
    assert len(notes) == 1
    everything = {"train": train, "dev": said_by(y=1), "test-mine": mine}
    assert split_off(everything, FRACTIONS, 1) == (everything, [])


def test_too_little_is_refused():
    with pytest.raises(ValueError, match="2 utterances are too few to be split into train and test and dev"):
        split_off({"all": said_by(a=2)}, FRACTIONS, 1)
    with pytest.raises(ValueError, match="all utterances are of dev and test: give some of split train"):
        split_off({"dev": said_by(a=9), "test": said_by(b=9)}, FRACTIONS, 1)


def recording(path: Path, amplitude: float = 0.1) -> Recording:
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, np.full(8000, amplitude), 8000)
    return Recording.from_file(path, recording_id=path.stem)


def test_training_and_unsplit_recordings_are_split_together(tmp_path):
    for split, suffix in (("mine", "_train"), ("more", "")):
        recordings = [recording(tmp_path / split / f"{split}{i}.wav") for i in (1, 2)]
        segments = [SupervisionSegment(f"{split}-{i}", f"{split}{i}", 0, 1, text="hi") for i in (1, 2)]
        json_lines(tmp_path / f"recordings{suffix}.jsonl", *recordings)
        json_lines(tmp_path / f"supervisions{suffix}.jsonl", *segments)
    corpus = prepare_custom(tmp_path, source=str(tmp_path))
    assert {split: len(manifests.supervisions) for split, manifests in corpus.splits.items()} == {
        "train": 2,
        "dev": 1,
        "test": 1,
    }
    json_lines(tmp_path / "recordings.jsonl", *(recording(tmp_path / "other" / f"mine{i}.wav") for i in (1, 2)))
    json_lines(tmp_path / "supervisions.jsonl", SupervisionSegment("other", "mine1", 0, 1, text="hi"))
    with pytest.raises(ValueError, match="recording 'mine1' is described twice"):
        prepare_custom(tmp_path, source=str(tmp_path))


def test_a_split_of_nothing_usable_is_not_replaced(tmp_path):
    rows = ["audio\ttext\tsplit"]
    for index in range(6):
        soundfile.write(tmp_path / f"{index}.wav", np.zeros(8000), 8000)
        rows.append(f"{index}.wav\thi\ttrain")
    (tmp_path / "t.tsv").write_text("\n".join([*rows, "gone.wav\thi\tdev", ""]))
    with pytest.raises(ValueError, match=r"nothing of split 'dev' can be used.*missing audio: .*gone\.wav"):
        prepare_custom(tmp_path, source=str(tmp_path / "t.tsv"))


def test_voices_that_given_splits_share_with_training_are_counted(tmp_path):
    rows = ["audio\ttext\tsplit\tspeaker"]
    for index, (split, speaker) in enumerate(
        [("train", "anna"), ("train", "bea"), ("train", ""), ("test", "anna"), ("test", "bea"), ("dev", "")]
    ):
        soundfile.write(tmp_path / f"{index}.wav", np.zeros(8000), 8000)
        rows.append(f"{index}.wav\thi\t{split}\t{speaker}")
    (tmp_path / "t.tsv").write_text("\n".join(rows))
    notes = prepare_custom(tmp_path, source=str(tmp_path / "t.tsv")).notes
    assert notes == ("speakers of test that are in train too: 2",)
