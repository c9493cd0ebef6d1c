"""Audio that cannot be transcribed is named and left out; the rest is transcribed."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from tests.faults.spoken_corpus import write_audio


@pytest.mark.parametrize("shape", [(1, 1), (99, 1), (20, 1024)])
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


def test_of_many_files_left_out_some_are_named(small_run, tmp_path):
    write_audio(tmp_path / "a.wav")
    table = tmp_path / "my.tsv"
    table.write_text("audio\ttext\na.wav\ta\n" + "".join(f"{number}.wav\ta\n" for number in range(100)))
    words = (f"run={small_run.run_dir}", f"manifest={table}", f"output_dir={tmp_path / 'out'}", "num_workers=0")
    ended = small_run.run("evaluate", *words)
    assert ended.code == 0, ended.printed
    assert ended.printed.count("left out") == 21
    assert "left out 80 more, 100 in all" in ended.printed


@pytest.mark.parametrize("name", ["a\tb.wav", "a\nb\x1b[31m.wav", "b\udcff.wav"])
def test_a_name_that_is_not_a_line_of_utf_8_is_left_out_of_the_transcripts(small_run, tmp_path, name):
    for file in ("good.wav", name):
        write_audio(tmp_path / "written.wav")
        (tmp_path / "written.wav").rename(tmp_path / file)
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={tmp_path}/*.wav")
    assert ended.code == 1, ended.printed
    assert f"could not read {str(tmp_path / name)!r}: " in ended.last_line
    assert f"\n{tmp_path}/good.wav\t" in f"\n{ended.printed}"


@pytest.mark.parametrize("audio", ["[]", "null", "[[]]", "''", "nowhere"])
def test_audio_that_names_no_file_is_refused(small_run, audio):
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={audio}")
    assert (ended.code, ended.last_line.startswith("asr-transcribe: audio")) == (2, True), ended.printed
