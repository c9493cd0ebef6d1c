import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse.qa import validate_recordings_and_supervisions

from asr.recipes.fsdd.prepare import draw_strings, prepare_fsdd
from asr.recipes.fsdd.sources import DIGITS, SPEAKERS, Digit

SMALL = {"num_train": 30, "num_dev": 12, "num_test": 18}


@pytest.fixture(scope="module")
def wavs(tmp_path_factory) -> Path:
    """The original's form, with noise for speech: ten recordings of each digit and speaker."""
    folder = tmp_path_factory.mktemp("original") / "recordings"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for digit in range(10):
        for speaker in SPEAKERS:
            for index in range(10):
                path = folder / f"{digit}_{speaker}_{index}.wav"
                soundfile.write(path, rng.normal(size=1600 + 10 * digit) * 0.1, 8000)
    return folder


def used(corpus) -> dict[str, Counter]:
    """Return how often each recording went into each split."""
    return {
        split: Counter(name for s in manifests.supervisions for name in s.custom["recordings"])
        for split, manifests in corpus.splits.items()
    }


def index_of(name: str) -> int:
    return int(name.rsplit("_", 1)[1])


@pytest.mark.parametrize("connected", [True, False])
def test_the_official_split_is_kept(wavs, tmp_path, connected):
    corpus = prepare_fsdd(tmp_path, source=str(wavs), connected=connected, **SMALL)
    by_split = used(corpus)
    assert {index_of(name) for name in by_split["test"]} <= {0, 1, 2, 3, 4}
    assert {index_of(name) for name in by_split["dev"]} <= {5, 6, 7}
    assert {index_of(name) for name in by_split["train"]} <= {8, 9}
    for manifests in corpus.splits.values():
        validate_recordings_and_supervisions(manifests.recordings, manifests.supervisions)
    if not connected:
        assert {split: len(counts) for split, counts in by_split.items()} == {"train": 120, "dev": 180, "test": 300}


@pytest.mark.parametrize("connected", [True, False])
def test_a_held_out_speaker_is_in_the_test_set_only(wavs, tmp_path, connected):
    corpus = prepare_fsdd(tmp_path, source=str(wavs), held_out_speaker="theo", connected=connected, **SMALL)
    speakers = {split: {name.split("_")[1] for name in counts} for split, counts in used(corpus).items()}
    assert speakers["test"] == {"theo"}
    assert speakers["train"] == speakers["dev"] == set(SPEAKERS) - {"theo"}
    assert not used(corpus)["train"].keys() & used(corpus)["dev"].keys()
    assert any("theo" in note for note in corpus.notes)


def test_strings_are_of_one_speaker_and_say_what_was_joined(wavs, tmp_path):
    corpus = prepare_fsdd(tmp_path, source=str(wavs), max_digits=4, **SMALL)
    for manifests in corpus.splits.values():
        for supervision in manifests.supervisions:
            names = supervision.custom["recordings"]
            assert 2 <= len(names) <= 4
            assert {name.split("_")[1] for name in names} == {supervision.speaker}
            assert supervision.text == " ".join(DIGITS[int(name[0])] for name in names)
            speech_s = sum(1600 + 10 * int(name[0]) for name in names) / 8000
            assert speech_s + 0.05 * len(names) < supervision.duration < speech_s + 0.25 * (len(names) + 1) + 0.01


def test_every_test_recording_is_used_about_equally_often():
    pool = [Digit(f"{d}_{s}_{i}", d, s, i, Path("x")) for d in range(10) for s in SPEAKERS for i in range(5)]
    counts = Counter(digit.id for string in draw_strings("test", pool, 300, 7, 1) for digit in string)
    assert len(counts) == 300
    assert max(counts.values()) - min(counts.values()) <= 2


def test_preparing_again_gives_the_same_audio_and_goes_on_where_it_stopped(wavs, tmp_path):
    first = prepare_fsdd(tmp_path / "a", source=str(wavs), **SMALL)
    prepare_fsdd(tmp_path / "b", source=str(wavs), **SMALL)
    files = {f.name: f.read_bytes() for f in (tmp_path / "a" / "audio").iterdir()}
    assert files == {f.name: f.read_bytes() for f in (tmp_path / "b" / "audio").iterdir()}
    for name in list(files)[::2]:
        (tmp_path / "b" / "audio" / name).unlink()
    again = prepare_fsdd(tmp_path / "b", source=str(wavs), **SMALL)
    assert files == {f.name: f.read_bytes() for f in (tmp_path / "b" / "audio").iterdir()}
    assert used(first) == used(again)


def test_an_unreadable_recording_is_dropped(wavs, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in wavs.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "3_theo_9.wav").write_bytes(b"broken")
    corpus = prepare_fsdd(tmp_path / "out", source=str(copy), **SMALL)
    assert [(item.split, item.item) for item in corpus.dropped] == [("train", "3_theo_9")]
    assert not any("3_theo_9" in counts for counts in used(corpus).values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out_speaker": "bob"}, "george, jackson, lucas, nicolas, theo, yweweler"),
        ({"num_train": 0}, "num_train"),
        ({"max_digits": 1}, "max_digits"),
    ],
)
def test_impossible_options_are_refused(wavs, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        prepare_fsdd(tmp_path, source=str(wavs), **{**SMALL, **options})


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Free Spoken Digit"):
        prepare_fsdd(tmp_path / "out", source=str(tmp_path))


def test_the_real_recordings_give_the_same_strings_from_every_form(shared_data, tmp_path):
    tar = shared_data / "fsdd_flac.tar"
    from_tar = prepare_fsdd(tmp_path / "tar", source=str(tar), **SMALL)
    with tarfile.open(tar) as archive:
        archive.extractall(tmp_path / "folder", filter="data")
    from_folder = prepare_fsdd(tmp_path / "from_folder", source=str(tmp_path / "folder"), **SMALL)
    assert used(from_tar) == used(from_folder)
    isolated = prepare_fsdd(tmp_path / "isolated", source=str(tmp_path / "folder"), connected=False)
    assert {split: len(counts) for split, counts in used(isolated).items()} == {"train": 2520, "dev": 180, "test": 300}
    assert from_tar.dropped == []
