"""Audio that cannot be used is found, and said."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, Features, Recording, SupervisionSegment
from lhotse.utils import fastcopy

from asr.data.manifests.audio import CHECKED_FORMATS, audio_problem
from asr.data.manifests.audio_files import audio_files
from asr.data.manifests.import_manifests import within_recording

SECOND = np.sin(np.arange(8000) / 5) * 0.3


@pytest.fixture(params=["wav", "flac"])
def recording(request, tmp_path) -> Recording:
    path = tmp_path / f"a.{request.param}"
    soundfile.write(path, SECOND, 8000)
    return Recording.from_file(path, recording_id="a")


def test_sound_audio_has_no_problem(recording):
    assert audio_problem(recording) is None
    assert audio_problem(recording.resample(16_000).perturb_speed(0.9)) is None


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (None, "missing audio"),
        (b"", "empty audio"),
        (b"RIFF", "unreadable audio"),
        (b"\0" * 5000, "unreadable audio"),
    ],
)
def test_a_file_of_something_else_is_found(recording, tmp_path, content, kind):
    for file in tmp_path.iterdir():
        file.unlink() if content is None else file.write_bytes(content)
    assert audio_problem(recording).startswith(f"{kind}: ")


@pytest.mark.parametrize("scale", [1.0, 3.0, 32768.0])
def test_floats_far_above_full_scale_are_found(tmp_path, scale):
    soundfile.write(tmp_path / "a.wav", scale * SECOND, 8000, subtype="FLOAT")
    problem = audio_problem(Recording.from_file(tmp_path / "a.wav"))
    assert (problem or "").startswith("unscaled audio" if scale > 32 else "")
    assert (problem is None) == (scale < 32)


@pytest.mark.parametrize("name", ["x;touch hacked;.sph", "pipe:touch hacked;.opus"])
def test_no_name_of_a_file_is_ever_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    soundfile.write(tmp_path / name, SECOND, 8000, format="WAV")
    recording = Recording.from_file(tmp_path / name)
    assert audio_problem(recording) is None
    assert recording.load_audio().shape == (1, 8000)
    assert [path.name for path in tmp_path.iterdir()] == [name]


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


@pytest.mark.parametrize(
    ("start", "duration", "channel", "kind"),
    [
        (0.0, 1.0, 0, None),
        (0.5, 0.5005, 0, None),
        (-0.0005, 1.0, [0], None),
        (0.0, 1.6, 0, "outside its recording"),
        (-0.1, 0.5, 0, "outside its recording"),
        (0.5, 0.0, 0, "outside its recording"),
        (0.0, float("nan"), 0, "outside its recording"),
        (0.0, 1.0, 1, "missing channel"),
    ],
)
def test_a_segment_lies_within_its_recording_or_features(start, duration, channel, kind):
    recording = Recording("a", [AudioSource("file", [0], "a.wav")], 8000, 8000, 1.0)
    features = Features("mfcc", 100, 5, 0.01, 8000, 2.0, 1.0, "numpy_files", "a", "b", "a", 0)
    for source, first_s in ((recording, 0.0), (features, 2.0)):
        segment = SupervisionSegment("s", "a", first_s + start, duration, channel)
        within = within_recording(segment, source)
        assert (within.split(":")[0] if kind else within) == (kind or segment)
    assert within_recording(SupervisionSegment("s", "b", 0.0, 1.0), None).startswith("missing recording: ")


RATE_HZ = 16_000
NOISE = np.random.default_rng(0).normal(size=4 * RATE_HZ) * 0.1
UNSEEKABLE = "GSM610"
# MPC2K and WVE have rates of their own, RAW has no header, SD2 has it in another file
WRITTEN = [
    *((name, None) for name in soundfile.available_formats() if name not in ("MPC2K", "RAW", "SD2", "WVE")),
    *(("OGG", "OPUS"), ("CAF", "ALAC_16"), ("WAV", "IMA_ADPCM"), ("WAV", UNSEEKABLE), ("NIST", "ULAW")),
]


def problem(path: Path) -> str | None:
    """Return why a file is not transcribed, whose length nothing but itself tells."""
    files, unreadable = audio_files([path], max_s=30.0)
    assert len(files) + len(unreadable) == 1
    return unreadable[0][1] if unreadable else None


@pytest.mark.parametrize(("name", "subtype"), WRITTEN)
def test_a_file_is_whole_or_refused(tmp_path, name, subtype):
    path = tmp_path / "a.audio"
    soundfile.write(path, NOISE, RATE_HZ, format=name, subtype=subtype)
    whole = problem(path)
    if subtype == UNSEEKABLE:
        assert whole.startswith("unreadable audio: GSM610")
    elif name in CHECKED_FORMATS:
        assert whole is None
    else:
        assert whole.startswith(f"unknown length: that of {name}")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * 0.9)])
    assert problem(path) is not None


@pytest.mark.parametrize("num_bytes", [1, 28, None])
def test_ogg_that_ends_within_a_page_or_with_one_that_is_not_the_last_is_cut_short(tmp_path, num_bytes):
    """A recorder that is killed leaves whole pages."""
    path = tmp_path / "a.ogg"
    soundfile.write(path, np.tile(NOISE, 20), RATE_HZ)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"OggS\0") + (0 if num_bytes is None else 4 + num_bytes)])
    assert problem(path).startswith("truncated audio: ")


def test_streamed_flac_without_a_number_of_samples_is_said_to_lack_it(tmp_path):
    path = tmp_path / "a.flac"
    soundfile.write(path, NOISE, RATE_HZ)
    content = bytearray(path.read_bytes())
    content[21] &= 0xF0  # the last 36 bits before the checksum of STREAMINFO
    content[22:26] = bytes(4)
    path.write_bytes(content)
    assert problem(path).startswith("unknown length: ")
