import shutil
from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import soundfile
from lhotse.qa import validate_recordings_and_supervisions

from asr.recipes.fsdd.prepare import DIGITS, Digit, Speaker, join, prepare_fsdd

SPEAKERS = get_args(Speaker)
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
    assert {index_of(name) for name in used(corpus)["dev"]} <= {5, 6, 7}
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
            words = supervision.alignment["word"]
            assert supervision.text == " ".join(word.symbol for word in words)
            assert [word.symbol for word in words] == [DIGITS[int(name[0])] for name in names]
            assert [round(word.duration * 8000) for word in words] == [1600 + 10 * int(name[0]) for name in names]
            speech_s = sum(1600 + 10 * int(name[0]) for name in names) / 8000
            assert speech_s + 0.05 * len(names) < supervision.duration < speech_s + 0.25 * (len(names) + 1) + 0.01


def test_recordings_stand_in_a_string_in_order_above_quiet_noise(wavs):
    string = [
        Digit(name, int(name[0]), "theo", 5, wavs / f"{name}.wav") for name in ("3_theo_5", "1_theo_5", "3_theo_6")
    ]
    audio, starts = join(string, seed=7)
    end = 0
    for digit, known in zip(string, starts, strict=True):
        start = end + int(np.argmax(np.correlate(audio[end:], digit.samples(), "valid")))
        assert start == known
        assert 0.05 <= (start - end) / 8000 <= 0.25
        end = start + len(digit.samples())
        audio[start:end] -= digit.samples()
    assert 0.05 <= (len(audio) - end) / 8000 <= 0.25
    assert audio.std() == pytest.approx(0.001, rel=0.05)


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


def audio_of(corpus) -> dict[str, bytes]:
    return {
        recording.id: Path(recording.sources[0].source).read_bytes()
        for manifests in corpus.splits.values()
        for recording in manifests.recordings
    }


def one_flac_per_speaker(wavs: Path, folder: Path) -> Path:
    """Write the recordings in the repacked form; return its index."""
    folder.mkdir()
    lines = ["file\tstart\tend\tid\tspeaker\ttext\tsplit"]
    for speaker in SPEAKERS:
        end, audio = 0, []
        for path in sorted(wavs.glob(f"*_{speaker}_*.wav")):
            audio.append(soundfile.read(path, dtype="int16")[0])
            start, end = end, end + len(audio[-1])
            word = DIGITS[int(path.name[0])]
            lines.append(f"{speaker}.flac\t{start}\t{end}\t{path.stem}\t{speaker}\t{word}\t?")
        soundfile.write(folder / f"{speaker}.flac", np.concatenate(audio), 8000)
    (folder / "index.tsv").write_text("\n".join(lines))
    return folder / "index.tsv"


def test_every_form_of_the_source_gives_the_same_audio(wavs, tmp_path):
    expected = audio_of(prepare_fsdd(tmp_path / "wavs", source=str(wavs), **SMALL))
    folder = one_flac_per_speaker(wavs, tmp_path / "repacked").parent
    for form in ("gztar", "zip"):
        archive = shutil.make_archive(str(tmp_path / "original"), form, wavs.parent)
        assert audio_of(prepare_fsdd(tmp_path / form, source=archive, **SMALL)) == expected
    assert audio_of(prepare_fsdd(tmp_path / "out", source=str(folder), **SMALL)) == expected


def test_a_shortened_file_drops_what_it_lacks(wavs, tmp_path):
    index = one_flac_per_speaker(wavs, tmp_path / "repacked")
    audio, _ = soundfile.read(index.parent / "theo.flac", dtype="int16")
    soundfile.write(index.parent / "theo.flac", audio[:-10], 8000)
    corpus = prepare_fsdd(tmp_path / "out", source=str(index.parent), **SMALL)
    assert [(item.item, item.reason.split(":")[0]) for item in corpus.dropped] == [("9_theo_9", "truncated audio")]


def test_a_damaged_download_is_fetched_again_and_a_given_archive_is_kept(tmp_path):
    for folder, source in ((tmp_path / "a", None), (tmp_path / "b", str(tmp_path / "b" / "original.tar.gz"))):
        folder.mkdir()
        (folder / "original.tar.gz").write_bytes(b"half an archive")
        with pytest.raises(ValueError, match=r"original\.tar\.gz"):
            prepare_fsdd(folder, source=source, **SMALL)
        assert (folder / "original.tar.gz").exists() == (source is not None)


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Free Spoken Digit"):
        prepare_fsdd(tmp_path / "out", source=str(tmp_path))


def test_the_real_recordings_are_whole(shared_data, tmp_path):
    corpus = prepare_fsdd(tmp_path, source=str(shared_data / "fsdd_flac.tar"), **SMALL)
    assert corpus.dropped == []
    assert not any("instead of" in note for note in corpus.notes)
