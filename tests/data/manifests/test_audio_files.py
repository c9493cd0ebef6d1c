import numpy as np
import pytest
import soundfile

from asr.data.manifests.audio_files import audio_cuts, find_audio


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.wav", "a.wav", "[c].wav", "c.wav", "deep/ünlü 1.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / name, np.ones(800) * 0.1, 8000)
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["b.wav", "a.wav"], ["b.wav", "a.wav"]),
        (["?.wav"], ["a.wav", "b.wav", "c.wav"]),
        (["b.wav", "[ab].wav"], ["b.wav", "a.wav"]),
        (["[c].wav"], ["[c].wav"]),
        (["**/*ünlü*"], ["deep/ünlü 1.wav"]),
    ],
)
def test_patterns_name_each_file_once_in_order(folder, patterns, names):
    assert [str(path) for path in find_audio(patterns)] == names


def test_a_pattern_that_names_folders_only_is_refused(folder):
    with pytest.raises(ValueError, match="'/dev/zero' names no regular file, but a folder, a pipe or a device"):
        find_audio(["/dev/zero"])
    with pytest.raises(ValueError, match=r"'d\*' names no regular file"):
        find_audio(["a.wav", "d*"])


def test_home_folders_are_understood(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert find_audio(["~/a.wav"]) == [folder / "a.wav"]


def test_unreadable_files_are_listed_with_their_reason_and_the_others_are_cuts(folder):
    (folder / "text.wav").write_bytes(b"no audio at all")
    (folder / "empty.wav").write_bytes(b"")
    soundfile.write(folder / "nothing.wav", np.zeros(0), 8000)
    cuts, unreadable = audio_cuts(find_audio(["*.wav", "deep/*"]), 16_000)
    assert [cut.id for cut in cuts] == ["[c].wav", "a.wav", "b.wav", "c.wav", "deep/ünlü 1.wav"]
    assert [cut.duration for cut in cuts] == [0.1] * 5
    reasons = dict(unreadable)
    assert set(reasons) == {"text.wav", "empty.wav", "nothing.wav"}
    assert "Format not recognised" in reasons["text.wav"]
    assert "empty audio" in reasons["nothing.wav"]
