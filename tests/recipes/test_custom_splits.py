"""Which utterances of a user's recordings become dev and test."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import Recording, SupervisionSegment

from asr.recipes.custom.prepare import prepare_custom, split_off

FRACTIONS = {"test": 0.1, "dev": 0.05}


def said_by(**counts: int) -> list[SupervisionSegment]:
    return [
        SupervisionSegment(f"{speaker}-{index}", "r", 0, 1, text="hi", speaker=speaker)
        for speaker, count in counts.items()
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("counts", "num_train"),
    [
        ({f"speaker{i}": 10 for i in range(10)}, 80),
        ({"big": 98, **{f"speaker{i}": 1 for i in range(25)}}, 98),
        # one of every few is large, as in the dialogues of games
        ({f"speaker{i}": 1 + 40 * (i % 5 == 0) for i in range(26)}, 200),
    ],
)
def test_speakers_are_held_out_whole_and_most_is_left_to_train_on(counts, num_train):
    for seed in range(20):
        splits, notes = split_off({"all": said_by(**counts)}, FRACTIONS, seed)
        speakers = {name: {segment.speaker for segment in found} for name, found in splits.items()}
        assert all(speakers[name] for name in ("train", "dev", "test"))
        assert sum(map(len, speakers.values())) == len(counts)
        assert sum(map(len, splits.values())) == sum(counts.values())
        assert len(splits["train"]) >= num_train
        assert len(speakers["train"]) >= 0.8 * len(counts)
        assert [note.split(",")[0] for note in notes] == ["test was split off", "dev was split off"]
        assert all("by speaker" in note and f"seed {seed}" in note for note in notes)


def test_shares_are_kept_where_speakers_are_many():
    splits, _ = split_off({"all": said_by(**{f"speaker{i:02}": 1 + i % 7 for i in range(60)})}, FRACTIONS, 1)
    total = sum(map(len, splits.values()))
    assert 0.05 * total < len(splits["test"]) <= round(0.1 * total)
    assert 0.02 * total < len(splits["dev"]) <= round(0.05 * total)


@pytest.mark.parametrize(
    ("speakers", "why"), [(("a", "b"), "fewer than 10 speakers"), (("a", "b", "c", None), "not every utterance")]
)
def test_without_enough_speakers_utterances_are_held_out_and_it_is_said_why(speakers, why):
    segments = [
        SupervisionSegment(f"{i}", "r", 0, 1, text="hi", speaker=speakers[i % len(speakers)]) for i in range(40)
    ]
    splits, notes = split_off({"all": segments}, FRACTIONS, 1)
    assert {name: len(found) for name, found in splits.items()} == {"train": 34, "dev": 2, "test": 4}
    assert all("by utterance" in note and why in note for note in notes)


def test_only_what_is_missing_is_split_off():
    train, mine = said_by(a=10, b=10, c=10, d=10, e=10), said_by(x=3)
    splits, notes = split_off({"train": train, "test-mine": mine}, FRACTIONS, 1)
    assert set(splits) == {"train", "dev", "test-mine"}
    assert splits["test-mine"] == mine
    assert len(notes) == 1
    assert "by speaker" in notes[0]
    everything = {"train": train, "dev": said_by(y=1), "test-mine": mine}
    assert split_off(everything, FRACTIONS, 1) == (everything, [])


def test_too_little_is_refused():
    with pytest.raises(ValueError, match="2 utterances are too few to be split into train and test and dev"):
        split_off({"all": said_by(a=2)}, FRACTIONS, 1)
    with pytest.raises(ValueError, match="all utterances are of dev and test: give some of split train"):
        split_off({"dev": said_by(a=9), "test": said_by(b=9)}, FRACTIONS, 1)


def write(path: Path, items: list[Recording] | list[SupervisionSegment]) -> None:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(item.to_dict()) + "\n" for item in items)


def recording(path: Path, amplitude: float = 0.1) -> Recording:
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, np.full(8000, amplitude), 8000)
    return Recording.from_file(path, recording_id=path.stem)


def test_training_and_unsplit_recordings_are_split_together(tmp_path):
    for split, suffix in (("mine", "_train"), ("more", "")):
        write(
            tmp_path / f"recordings{suffix}.jsonl.gz", [recording(tmp_path / split / f"{split}{i}.wav") for i in (1, 2)]
        )
        segments = [SupervisionSegment(f"{split}-{i}", f"{split}{i}", 0, 1, text="hi") for i in (1, 2)]
        write(tmp_path / f"supervisions{suffix}.jsonl.gz", segments)
    corpus = prepare_custom(tmp_path, source=str(tmp_path))
    assert {split: len(manifests.supervisions) for split, manifests in corpus.splits.items()} == {
        "train": 2,
        "dev": 1,
        "test": 1,
    }
    write(tmp_path / "recordings.jsonl.gz", [recording(tmp_path / "other" / f"mine{i}.wav") for i in (1, 2)])
    write(tmp_path / "supervisions.jsonl.gz", [SupervisionSegment("other", "mine1", 0, 1, text="hi")])
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
