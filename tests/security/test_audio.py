"""Audio that would fill memory when decoded is named and left out; the rest is transcribed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.manifests.audio_files import audio_files
from tests.faults.spoken_corpus import write_audio


# how the file is written, why it is not read
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


# transforms of a recording at 8 kHz, why they are not applied
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
