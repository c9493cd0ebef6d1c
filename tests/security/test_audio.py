"""Audio that would fill memory when decoded is named and left out; the rest is transcribed."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, Recording
from lhotse.augmentation import Resample, Speed

from asr.data.manifests.audio_checks import audio_problem
from asr.data.manifests.audio_files import audio_files
from asr.data.manifests.decoding_limits import too_long
from tests.faults.spoken_corpus import write_audio


def silence(path: Path, duration_s: float, rate_hz: int = 8000, num_channels: int = 1) -> None:
    """Write hours of it as a few kilobytes of FLAC."""
    with soundfile.SoundFile(path, "w", rate_hz, num_channels, format="FLAC", subtype="PCM_16") as file:
        minute = np.zeros((60 * rate_hz, num_channels), "int16")
        for _ in range(round(duration_s / 60)):
            file.write(minute)


def rate(path: Path, rate_hz: int) -> None:
    """Write a second of audio whose header claims a rate."""
    soundfile.write(path, np.zeros(8000), 8000, format="WAV")
    content = bytearray(path.read_bytes())
    place = content.find(b"fmt ") + 12
    content[place : place + 4] = struct.pack("<I", rate_hz)
    path.write_bytes(content)


def claim(path: Path, num_bytes: int) -> None:
    """Write ten samples under a header that claims more."""
    soundfile.write(path, np.zeros(10), 8000, format="WAV")
    content = bytearray(path.read_bytes())
    place = content.find(b"data") + 4
    content[place : place + 4] = struct.pack("<I", num_bytes)
    path.write_bytes(content)


# how the file is written, why it is not read
BOMBS = {
    "two hours of silence": (lambda path: silence(path, 7200), "longer than 900 s; cut it into parts"),
    "14 minutes of 8 channels": (
        lambda path: silence(path, 840, 8000, 8),
        "more than 43200000 samples in all channels; cut it into parts",
    ),
    "1 Hz": (lambda path: rate(path, 1), "impossible rate: 1 Hz, allowed are 4000 to 768000"),
    "3999 Hz": (lambda path: rate(path, 3999), "impossible rate: 3999 Hz"),
    "a million Hz": (lambda path: rate(path, 1_000_000), "impossible rate: 1000000 Hz"),
    "a prime rate": (lambda path: rate(path, 383_987), "impossible rate: resampling from 383987 to"),
    "a claim of 4 GB": (
        lambda path: claim(path, 2**32 - 100),
        "truncated audio: its header claims 4294967196 bytes, 20 are there",
    ),
    "2147483647 Hz": (lambda path: rate(path, 2**31 - 1), "impossible rate: 2147483647 Hz"),
}


@pytest.mark.parametrize(("write", "reason"), BOMBS.values(), ids=BOMBS)
def test_audio_that_would_fill_memory_is_not_decoded(small_run, tmp_path, write, reason):
    bad, good = tmp_path / "bad.audio", tmp_path / "good.wav"
    write(bad)
    write_audio(good)
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio=[{bad},{good}]")
    assert f"{good}\t" in ended.printed
    if reason.endswith("cut it into parts"):
        # what asr-transcribe does by itself
        assert (ended.code, f"{bad}\t\n" in ended.printed) == (0, True), ended.printed
    else:
        assert (ended.code, f"could not read {bad}: {reason}" in ended.last_line) == (1, True), ended.printed
    table = tmp_path / "my.tsv"
    table.write_text(f"audio\ttext\n{bad.name}\ta\n{good.name}\ta\n")
    words = (f"run={small_run.run_dir}", f"manifest={table}", f"output_dir={tmp_path / 'out'}", "num_workers=0")
    evaluated = small_run.run("evaluate", *words)
    assert evaluated.code == 0, evaluated.printed
    assert f"left out bad: {reason}" in evaluated.printed
    assert max(ended.peak_mb, evaluated.peak_mb) < 500


@pytest.mark.parametrize("shape", [(1, 1), (10, 1), (99, 1), (20, 1024)])
def test_audio_without_a_whole_frame_is_too_short(small_run, tmp_path, shape):
    soundfile.write(tmp_path / "short.wav", np.ones(shape), 8000)
    words = f"run={small_run.run_dir}", f"audio={tmp_path / 'short.wav'}"
    ended = small_run.run("transcribe", *words)
    assert ended.code == 2, ended.printed
    assert f"could not read {tmp_path / 'short.wav'}: ValueError: too short: " in ended.printed
    assert ended.last_line == "asr-transcribe: audio: no file could be read; give files that hold audio"


def test_a_file_that_is_no_audio_is_refused_and_no_transcript_is_written(small_run, tmp_path):
    (tmp_path / "t.tsv").write_text("audio\ttext\n")
    words = f"run={small_run.run_dir}", f"audio={tmp_path / 't.tsv'}", f"output={tmp_path / 'out.tsv'}"
    ended = small_run.run("transcribe", *words)
    assert (ended.code, "could not read" in ended.printed) == (2, True), ended.printed
    assert ended.last_line.startswith("asr-transcribe: audio: no file could be read")
    assert not (tmp_path / "out.tsv").exists()


def test_a_part_of_a_long_recording_is_decoded(tmp_path):
    silence(tmp_path / "a.flac", 7200)
    whole = Recording.from_file(tmp_path / "a.flac").to_cut()
    assert too_long(whole) is not None
    assert too_long(whole.truncate(offset=7000, duration=20)) is None
    longest = whole.truncate(duration=900)
    assert (too_long(longest, 48_000), too_long(longest, 48_001) is None) == (None, False)


# transforms of a recording at 8 kHz, why they are not applied
TRANSFORMS = {
    "a usual rate": ([Resample(44_100, 8000)], None),
    "a usual speed": ([Speed(0.9)], None),
    "a prime rate": ([Resample(383_987, 8000)], "resampling from 383987 to 8000 Hz takes a filter"),
    "a filter of ten million numbers": ([Resample(16_000, 3203)], "takes a filter of more than 1048576 numbers"),
    "a rate of a million": ([Resample(8000, 1_000_003), Resample(1_000_003, 8000)], "to 1000003 Hz, allowed are"),
    "a rate of 0": ([Resample(0, 8000)], "resampling from 0 to 8000 Hz, allowed are"),
    "a negative speed": ([Speed(-1.0)], "resampling from -8000 to 8000 Hz, allowed are"),
    "a speed without end": ([Speed(1e308)], "impossible transforms: "),
    "a speed that is none": ([Speed(float("nan"))], "impossible transforms: "),
    "a speed in words": ([Speed("fast")], "impossible transforms: "),
    "a rate of 10^40": ([Resample(8000, 10**40)], "more than 43200000 samples"),
    "a speed that is nearly 1": ([Speed(1.000_125)], "resampling from 8001 to 8000 Hz takes a filter"),
    "a hundred speeds": ([Speed(0.9)] * 100, "impossible transforms: 100, allowed are 20"),
}


@pytest.mark.parametrize(("transforms", "reason"), TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_that_would_fill_memory_are_not_applied(transforms, reason):
    recording = Recording("a", [AudioSource("file", [0], "a.wav")], 8000, 8000, 1.0, transforms=transforms)
    found = too_long(recording.to_cut(), 16_000)
    assert (found is None) if reason is None else (reason in found)


def test_audio_written_to_a_pipe_has_the_length_that_is_there(tmp_path):
    claim(tmp_path / "a.wav", 0xFFFFFFFF)
    assert audio_problem(Recording.from_file(tmp_path / "a.wav")) is None


def test_of_many_files_left_out_some_are_named(small_run, tmp_path):
    write_audio(tmp_path / "a.wav")
    table = tmp_path / "my.tsv"
    table.write_text("audio\ttext\na.wav\ta\n" + "".join(f"{number}.wav\ta\n" for number in range(100)))
    words = (f"run={small_run.run_dir}", f"manifest={table}", f"output_dir={tmp_path / 'out'}", "num_workers=0")
    ended = small_run.run("evaluate", *words)
    assert ended.code == 0, ended.printed
    assert ended.printed.count("left out") == 21
    assert "left out 80 more, 100 in all" in ended.printed


def test_a_name_that_is_not_one_line_is_left_out_of_the_transcripts(small_run, tmp_path):
    for name in ("good.wav", "a\tb.wav", "a\nb\x1b[31m.wav"):
        write_audio(tmp_path / name)
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={tmp_path}/*.wav")
    assert ended.code == 1, ended.printed
    for name in (r"a\tb.wav", r"a\nb\x1b[31m.wav"):
        assert f"could not read '{tmp_path}/{name}': " in ended.printed
    assert "rename the file" in ended.last_line
    assert f"\n{tmp_path}/good.wav\t" in f"\n{ended.printed}"


def test_a_name_that_is_not_utf_8_is_left_out_of_the_transcripts(small_run, tmp_path):
    write_audio(tmp_path / "good.wav")
    (tmp_path / "good.wav").rename(tmp_path / "b\udcff.wav")
    write_audio(tmp_path / "good.wav")
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={tmp_path}/*.wav")
    assert ended.code == 1, ended.printed
    name = rf"'{tmp_path}/b\udcff.wav'"
    assert ended.last_line == f"could not read {name}: its name is not UTF-8, which transcripts are; rename the file"
    assert f"\n{tmp_path}/good.wav\t" in f"\n{ended.printed}"


def test_a_name_in_a_locale_that_is_not_utf_8_is_no_fault_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsencode", lambda name: name.encode("ascii", "surrogateescape"))
    (_, said), (_, of_bytes) = audio_files([Path("\udcc3\udca4 b.FLAC"), Path("\udcff.FLAC")], 8000, max_s=5.0)[1]
    assert said == "its name, 'ä b.FLAC', is UTF-8, which the locale of this process is not; set LC_ALL=C.UTF-8"
    assert "rename the file" in of_bytes


@pytest.mark.parametrize("audio", ["[]", "null", "[[]]", "''", "nowhere"])
def test_audio_that_names_no_file_is_refused(small_run, audio):
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={audio}")
    assert (ended.code, ended.last_line.startswith("asr-transcribe: audio")) == (2, True), ended.printed
