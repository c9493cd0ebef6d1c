import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, Recording

from asr.data.audio_checks import audio_problem, refuse_foreign_sources

SECOND = np.sin(np.arange(8000) / 5) * 0.3


@pytest.fixture(params=["wav", "flac"])
def recording(request, tmp_path) -> Recording:
    path = tmp_path / f"a.{request.param}"
    soundfile.write(path, SECOND, 8000)
    return Recording.from_file(path, recording_id="a")


def test_sound_audio_has_no_problem(recording):
    assert audio_problem(recording) is None
    assert audio_problem(recording.resample(16_000)) is None


def test_a_missing_file_is_found(recording, tmp_path):
    for file in tmp_path.iterdir():
        file.unlink()
    assert audio_problem(recording).startswith("missing audio: ")


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"", "empty audio"), (b"no audio at all", "unreadable audio"), (b"\0" * 5000, "unreadable audio")],
)
def test_a_file_of_something_else_is_found(recording, tmp_path, content, kind):
    for file in tmp_path.iterdir():
        file.write_bytes(content)
    assert audio_problem(recording).startswith(f"{kind}: ")


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.1])
def test_a_truncated_file_is_found(recording, tmp_path, kept):
    for file in tmp_path.iterdir():
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * kept)])
    assert audio_problem(recording).split(":")[0] in ("truncated audio", "unreadable audio")


def test_a_file_without_samples_is_found(tmp_path, recording):
    for file in tmp_path.iterdir():
        soundfile.write(file, np.zeros(0), 8000)
    assert audio_problem(recording).startswith("empty audio: ")


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("command", "touch hacked; cat a.wav"),
        ("url", "https://example.org/a.wav"),
        ("memory", b"RIFF"),
        ("shar", ""),
        ("file", "cat a.wav |"),
        ("file", "|cat a.wav"),
        ("made-up", "a.wav"),
    ],
)
def test_audio_that_is_not_a_file_is_refused_and_never_opened(tmp_path, monkeypatch, kind, source):
    monkeypatch.chdir(tmp_path)
    recording = Recording("evil", [AudioSource(kind, [0], source)], 8000, 8000, 1.0)
    for check in (audio_problem, lambda one: refuse_foreign_sources([one])):
        with pytest.raises(ValueError, match="evil"):
            check(recording)
    assert list(tmp_path.iterdir()) == []
