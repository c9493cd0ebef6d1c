import importlib
import os
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, Recording, SupervisionSegment
from lhotse.audio import get_current_audio_backend, set_current_audio_backend
from lhotse.utils import fastcopy

from asr.data.manifests import audio_checks
from asr.data.manifests.audio_checks import audio_problem, refuse_foreign_sources
from asr.data.manifests.manifest_checks import segment_problem

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
    [
        (b"", "empty audio"),
        (b"RIFF", "unreadable audio"),
        (b"no audio at all", "unreadable audio"),
        (b"\0" * 5000, "unreadable audio"),
    ],
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


def test_a_command_inside_an_impulse_response_is_refused(recording):
    room = Recording("room", [AudioSource("command", [0], "touch hacked")], 8000, 8000, 1.0)
    with pytest.raises(ValueError, match="touch hacked"):
        audio_problem(recording.reverb_rir(room))
    assert audio_problem(recording.reverb_rir(recording)) is None


@pytest.mark.parametrize("ending", ["sph", "SPH", "opus", "m4a", "unheard-of"])
def test_no_name_of_a_file_is_ever_run(tmp_path, monkeypatch, ending):
    monkeypatch.chdir(tmp_path)
    for name in (f"x;touch hacked;.{ending}", f"pipe:touch hacked;.{ending}"):
        soundfile.write(tmp_path / name, SECOND, 8000, format="WAV")
        for path in (name, tmp_path / name):
            recording = Recording.from_file(path)
            assert audio_problem(recording) is None
            assert recording.load_audio().shape == (1, 8000)
        (tmp_path / name).unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_reader_chosen_before_is_replaced():
    set_current_audio_backend("default")
    importlib.reload(audio_checks)
    assert type(get_current_audio_backend()).__name__ == "FilesAndShards"


def test_processes_that_never_import_the_checks_read_with_libsndfile_too():
    script = "from lhotse.audio.backend import get_current_audio_backend as b; print(type(b()).__name__)"
    done = subprocess.run([sys.executable, "-c", script], env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "LibsndfileBackend"


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"sampling_rate": 4000, "duration": 2.0}, "unexpected rate"),
        ({"sources": [AudioSource("file", [0, 1], "")], "channel_ids": [0, 1]}, "unexpected channels"),
        ({"num_samples": 8081, "duration": 8081 / 8000}, "truncated audio"),
        ({"num_samples": 8080, "duration": 8080 / 8000}, None),
        ({"num_samples": 7000, "duration": 7000 / 8000}, None),
    ],
)
def test_a_manifest_that_tells_otherwise_is_found(recording, told, kind):
    for source in told.get("sources", ()):
        source.source = recording.sources[0].source
    problem = audio_problem(fastcopy(recording, **told))
    assert (problem and problem.split(":")[0]) == kind


def test_a_name_too_long_for_a_file_is_a_missing_file(recording):
    recording.sources[0].source = "x" * 5000
    assert audio_problem(recording).startswith("missing audio: ")


@pytest.mark.parametrize(
    ("start", "duration", "channel", "kind"),
    [
        (0.0, 1.0, 0, None),
        (0.5, 0.5005, 0, None),
        (-0.0005, 1.0, [0], None),
        (0.0, 1.1, 0, "outside its recording"),
        (-0.1, 0.5, 0, "outside its recording"),
        (0.5, 0.0, 0, "impossible segment"),
        (0.5, -1.0, 0, "impossible segment"),
        (float("nan"), 1.0, 0, "impossible segment"),
        (0.0, float("nan"), 0, "impossible segment"),
        (0.0, float("inf"), 0, "impossible segment"),
        (0.0, 1.0, 1, "missing channel"),
    ],
)
def test_a_segment_lies_within_its_recording(recording, start, duration, channel, kind):
    problem = segment_problem(SupervisionSegment("s", "a", start, duration, channel), recording)
    assert (problem and problem.split(":")[0]) == kind


@pytest.mark.parametrize(
    "told",
    [
        {"duration": 2.0},
        {"duration": 0.0},
        {"duration": -1.0},
        {"num_samples": 0, "duration": 0.0},
        {"duration": float("nan")},
    ],
)
def test_a_recording_that_contradicts_itself_is_found(recording, told):
    segment = SupervisionSegment("s", "a", 0.0, 0.5)
    assert segment_problem(segment, fastcopy(recording, **told)).startswith("contradictory recording: ")


def test_audio_without_a_header_is_unreadable(tmp_path):
    (tmp_path / "a.raw").write_bytes(b"12" * 8000)
    recording = Recording("a", [AudioSource("file", [0], str(tmp_path / "a.raw"))], 8000, 8000, 1.0)
    assert audio_problem(recording).startswith("unreadable audio: ")


def test_a_segment_of_no_recording_is_found():
    assert segment_problem(SupervisionSegment("s", "gone", 0.0, 1.0), None) == "missing recording: gone"
