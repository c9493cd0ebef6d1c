import shutil
from pathlib import Path

import pytest

from asr.recipes.aishell.prepare import prepare_aishell, source_files
from tests.recipes.miniatures import reasons, speakers_of, texts_of, write_aishell


@pytest.fixture(scope="module")
def folder(words, tmp_path_factory) -> Path:
    return write_aishell(tmp_path_factory.mktemp("folder"), words)


@pytest.fixture(scope="module")
def archive(words, tmp_path_factory) -> Path:
    """The archive of openslr.org, with an archive of each speaker in it."""
    return write_aishell(tmp_path_factory.mktemp("archive"), words, speaker_archives=True)


def test_the_official_split_is_read_in_characters(folder, tmp_path):
    corpus = prepare_aishell(tmp_path, source=str(folder))
    assert speakers_of(corpus) == {
        "train": {"S0002", "S0003", "S0004"},
        "dev": {"S0102", "S0103", "S0104"},
        "test": {"S0202", "S0203", "S0204"},
    }
    assert texts_of(corpus)["train"]["BAC009S0002W0122"] == "A级是的下面"
    assert texts_of(corpus)["train"]["BAC009S0002W0123"] == "不下面"
    assert all(" " not in text for texts in texts_of(corpus).values() for text in texts.values())


def test_what_has_only_audio_or_only_a_transcript_is_said(folder, tmp_path):
    corpus = prepare_aishell(tmp_path, source=str(folder))
    assert set(reasons(corpus)) == {
        ("train", "BAC009S0002W0124", "no transcript"),
        ("dev", "BAC009S0102W0124", "no transcript"),
        ("test", "BAC009S0202W0124", "no transcript"),
    }
    assert "transcripts without audio: 1" in corpus.notes
    assert any("8 utterances of train instead of 120098" in note for note in corpus.notes)


def test_archives_of_speakers_in_the_archive_are_unpacked(folder, archive, tmp_path):
    expected = texts_of(prepare_aishell(tmp_path / "a", source=str(folder)))
    assert texts_of(prepare_aishell(tmp_path / "b", source=str(archive))) == expected
    assert not list((tmp_path / "b").rglob("S*.tar.gz"))
    # an interrupted call has removed some of them already
    assert texts_of(prepare_aishell(tmp_path / "b", source=str(archive))) == expected
    half = tmp_path / "half"
    shutil.unpack_archive(archive, half)
    assert texts_of(prepare_aishell(tmp_path / "c", source=str(half / "data_aishell"))) == expected
    wav = half / "data_aishell" / "wav"
    assert len(list(wav.glob("*.tar.gz"))) == 9
    assert not (wav / "train").exists()
    shutil.unpack_archive(wav / "S0002.tar.gz", wav)  # as users do
    assert texts_of(prepare_aishell(tmp_path / "d", source=str(half))) == expected


def test_what_is_no_aishell_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="AISHELL-1 is not there"):
        prepare_aishell(tmp_path / "a", source=str(folder / "data_aishell" / "wav"))
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "data_aishell" / "wav" / "dev")
    with pytest.raises(ValueError, match="no transcribed audio of dev below wav"):
        prepare_aishell(tmp_path / "b", source=str(copy))


def test_only_transcripts_tell_whether_a_folder_has_changed(folder):
    assert [path.name for path in source_files(folder)] == ["aishell_transcript_v0.8.txt"]
