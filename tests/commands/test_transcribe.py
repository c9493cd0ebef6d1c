"""asr-transcribe: long recordings, folders, formats, and what is there already."""

import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import soundfile


@pytest.fixture
def folder(small_run, tmp_path):
    """A short recording, and a long one of ten utterances with pauses between them."""
    files = sorted(small_run.folder.glob("data/digits/*/audio/test-*/*.flac"))
    (tmp_path / "audio" / "deep").mkdir(parents=True)
    shutil.copy(files[0], tmp_path / "audio" / "short.flac")
    joined = []
    for file in (files * 10)[:10]:
        samples, rate_hz = soundfile.read(file)
        joined += [samples, np.zeros(rate_hz)]
    soundfile.write(tmp_path / "audio" / "deep" / "long.flac", np.concatenate(joined), rate_hz)
    soundfile.write(tmp_path / "audio" / "deep" / "silence.wav", np.zeros((20 * rate_hz, 2)), rate_hz)
    return tmp_path


def transcribe(small_run, folder, *words: str, code: int = 0) -> str:
    ended = small_run.programs.run("transcribe", f"run={small_run.run_dir}", *words, cwd=folder, code=code)
    return ended.printed


def written(folder) -> dict[str, str]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix in ("", ".txt", ".srt")]
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def test_a_folder_becomes_a_folder_and_what_is_done_is_skipped(small_run, folder):
    words = ("audio=audio", "output_dir=out", "output_format=[txt,srt]")
    *told, last = transcribe(small_run, folder, *words).splitlines()
    assert last == "transcripts of 3 files: out"
    shares = {line.split(":")[0]: float(line.split("%")[0].split()[-1]) for line in told if "%" in line}
    assert shares == {"audio/deep/long.flac": pytest.approx(25, abs=20), "audio/deep/silence.wav": 100}
    names = [f"{name}.{ending}" for name in ("deep/long", "deep/silence", "short") for ending in ("srt", "txt")]
    first = written(folder / "out")
    assert list(first) == names
    assert first["deep/silence.txt"] == ""
    assert len(first["deep/long.txt"].splitlines()) == 10
    assert transcribe(small_run, folder, *words).splitlines()[-1] == "3 of 3 files have their transcripts already"
    (folder / "out" / "deep" / "long.srt").unlink()
    (folder / "out" / "deep" / "long.txt").write_text("mine")
    printed = transcribe(small_run, folder, *words)
    assert "2 of 3 files have their transcripts already" in printed
    assert written(folder / "out") == {**first, "deep/long.txt": "mine"}


def test_transcripts_of_another_model_or_recording_are_not_taken_for_those_asked_for(small_run, folder):
    words = ("audio=audio/short.flac", "output_dir=out", "output_format=txt")
    transcribe(small_run, folder, *words)
    other = shutil.copy(next((small_run.run_dir / "checkpoints").glob("update-*.ckpt")), folder / "other.ckpt")
    with open(other, "ab") as file:
        file.write(b" ")
    for changed, what in ((f"run={other}", "checkpoint"), ("decoder=ctc_beam", "decoder")):
        assert f"another {what}" in transcribe(small_run, folder, *words, changed, code=2)
    audio = folder / "audio" / "short.flac"
    os.utime(audio, (0, time.time() + 10_000))  # the same content, by a clock that goes wrong
    assert "1 of 1 files have their transcripts already" in transcribe(small_run, folder, *words)
    samples, rate_hz = soundfile.read(audio)
    soundfile.write(audio, samples[::-1], rate_hz)
    printed = transcribe(small_run, folder, *words, "output_format=[txt,srt]", code=1)
    assert "short.txt' is of another recording" in printed
    record = folder / "out" / ".asr-transcribe.jsonl"
    record.write_text(f'{record.read_text()}["half a li')  # of a process that was killed
    (folder / "out" / "short.txt").unlink()
    transcribe(small_run, folder, *words)
    assert "1 of 1 files have their transcripts already" in transcribe(small_run, folder, *words)


def test_a_file_that_cannot_be_read_is_named_again_and_is_no_fault_of_the_others(small_run, folder):
    broken = folder / "audio" / "broken.flac"
    broken.write_bytes((folder / "audio" / "short.flac").read_bytes()[:5000])
    words = ("audio=audio", "output_dir=out", "output_format=txt")
    assert transcribe(small_run, folder, *words, code=1).splitlines()[-1] == "transcripts of 3 files: out"
    there, reason = transcribe(small_run, folder, *words, code=1).splitlines()
    assert there == "3 of 4 files have their transcripts already"
    assert reason.startswith("could not read audio/broken.flac: ")
    transcribe(small_run, folder, "audio=audio/broken.flac", "output_dir=out", code=2)


def test_a_text_beside_a_recording_is_not_its_transcript(small_run, folder):
    reference = folder / "audio" / "short.txt"
    reference.write_text("what was really said")
    words = ("audio=audio", "output_dir=audio", "output_format=txt")
    for done in ("transcripts of 2 files", "2 of 3 files have their transcripts already"):
        printed = transcribe(small_run, folder, *words, code=1)
        assert "short.txt' was not written by asr-transcribe" in printed
        assert done in printed
    assert reference.read_text() == "what was really said"


def test_parts_have_the_times_of_the_whole(small_run, folder):
    words = ("audio=audio/deep/long.flac", "output_format=json")
    long = json.loads(transcribe(small_run, folder, *words).splitlines()[-1])
    starts = [segment["start"] for segment in long["segments"]]
    assert len(starts) == 10
    assert starts == sorted(starts)
    assert long["text"] == " ".join(segment["text"] for segment in long["segments"])
    for word in long["words"]:
        assert any(one["start"] <= word["start"] <= word["end"] <= one["end"] + 0.1 for one in long["segments"])
    whole = transcribe(small_run, folder, *words, "max_segment_s=100")
    assert len(json.loads(whole.splitlines()[-1])["segments"]) == 1


def test_every_channel_is_transcribed_if_asked_for(small_run, folder):
    samples, rate_hz = soundfile.read(folder / "audio" / "short.flac")
    soundfile.write(folder / "two.wav", np.stack([np.zeros_like(samples), samples], axis=1), rate_hz)
    first = json.loads(transcribe(small_run, folder, "audio=two.wav", "output_format=json").splitlines()[-1])
    assert {segment["channel"] for segment in first["segments"]} <= {1}
    printed = transcribe(small_run, folder, "audio=two.wav", "output_format=json", "channels=each")
    both = json.loads(printed.splitlines()[-1])
    alone = transcribe(small_run, folder, "audio=audio/short.flac", "output_format=json")
    expected = json.loads(alone.splitlines()[-1])["text"]
    assert [one["text"] for one in both["segments"] if one["channel"] == 2] == [expected]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audio=audio", "output_format=srt"], "output_format=srt"),
        (["audio=audio", "output_format=[srt,txt]"], "output_format"),
        (["audio=audio", "output=a", "output_dir=b"], "output and output_dir"),
        (["audio=audio", "output_dir=audio/short.flac"], "output_dir"),
        (["audio=[audio/short.flac,short.wav]", "output_dir=o"], "output_dir"),
        (["audio=audio/short.flac", "output=o.srt"], "output_format=srt"),
    ],
)
def test_what_cannot_be_written_is_said_before_any_work(small_run, folder, words, said):
    shutil.copy(folder / "audio" / "short.flac", folder / "short.wav")
    assert said in transcribe(small_run, folder, *words, code=2)
    assert not (folder / "o").exists()


def test_decoding_waits_for_no_library_that_only_trains_or_draws(small_run):
    code = "import sys\nfrom asr.commands.__main__ import transcribe\ntranscribe()\nprint(*sys.modules)"
    words = (f"run={small_run.run_dir}", f"audio={small_run.audio}", "torch_threads=1")
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=small_run.folder, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "torch" in loaded
    assert not loaded & {"lightning", "matplotlib", "scipy.signal", "torchmetrics", "torch._dynamo", "wandb"}


def test_audio_of_unusual_kinds_is_transcribed_or_named(small_run, tmp_path):
    audio = tmp_path / "audio"
    audio.mkdir()
    shutil.copy(small_run.audio, audio / "a-good.flac")
    speech, rate_hz = soundfile.read(small_run.audio)
    soundfile.write(audio / "b-no-samples.wav", np.zeros(0), rate_hz)
    soundfile.write(audio / "c-192-khz.wav", np.repeat(speech, 192_000 // rate_hz), 192_000)
    soundfile.write(audio / "d-8-channels.wav", np.stack([speech] * 8, axis=1), rate_hz)
    with soundfile.SoundFile(audio / "e-2-hours.flac", "w", 8000, 1) as file:
        for _ in range(120):
            file.write(np.zeros(60 * 8000, dtype=np.int16))
    printed = transcribe(small_run, tmp_path, "audio=audio", "output_dir=out", "output_format=txt", code=1)
    (unread,) = [line for line in printed.splitlines() if line.startswith("could not read")]
    assert unread.startswith("could not read audio/b-no-samples.wav: ")
    found = written(tmp_path / "out")
    assert list(found) == ["a-good.txt", "c-192-khz.txt", "d-8-channels.txt", "e-2-hours.txt"]
    assert found["d-8-channels.txt"] == found["a-good.txt"]
    assert found["e-2-hours.txt"] == ""
