"""asr-stream: files and standard input, with a causal Zipformer."""

import os
import subprocess
import sys

import numpy as np
import pytest
import soundfile

from asr.commands.stream import _from_file, _Listener
from asr.errors import RunFailed
from asr.inference.streaming import Partial


@pytest.fixture
def audio(small_run):
    return small_run.audio()


def test_a_file_is_heard_as_it_is_transcribed(small_run, causal, audio):
    whole = small_run.run("transcribe", f"run={causal}", f"audio={audio}", "max_segment_s=100")
    assert whole.code == 0, whole.printed
    text = whole.printed.splitlines()[-1].partition("\t")[2]
    for packet_s in (0.01, 0.3, 5):
        words = (f"run={causal}", f"audio={audio}", f"packet_s={packet_s}", "endpoint_s=100")
        heard = small_run.run("stream", *words)
        assert heard.code == 0, heard.printed
        *lines, last = heard.printed.splitlines()
        assert " ".join(lines) == text
        assert "s of audio in chunks of 0.32 s, each" in last
        assert "ms after the end" in last


def test_standard_input_is_heard_to_its_end_though_half_a_sample_is_left(causal, audio, small_run):
    samples, rate_hz = soundfile.read(audio, dtype="int16")
    command = [
        sys.executable,
        "-m",
        "asr.commands",
        "stream",
        f"run={causal}",
        "audio=-",
        f"sampling_rate_hz={rate_hz}",
    ]
    done = subprocess.run(command, input=samples.tobytes() + b"\1", capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    of_file = small_run.run("stream", f"run={causal}", f"audio={audio}")
    assert done.stdout.decode().splitlines() == of_file.printed.splitlines()[:-1]
    assert f"{len(samples) / rate_hz:.1f} s of audio" in done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["run=RUN"],
            "run: only a causal Zipformer with log-mel features can stream, not TransformerEncoder",
        ),
        (["audio=none.wav"], "audio: 'none.wav' is no file; give one, or - for samples on standard input"),
        (["audio=text.wav"], "audio: text.wav cannot be read: Format not recognised"),
        (["audio=half.wav"], "audio: truncated audio: "),
        (["audio=long.flac"], "audio: "),
        (
            ["audio=nan.wav"],
            "audio: sample 9000 (0.562 s) is nan; samples must be finite, usually in [-1, 1]; its text",
        ),
        (["packet_s=11"], "packet_s: "),
        (["audio=-", "at_own_pace=true"], "at_own_pace is for files; standard input has its own pace"),
    ],
)
def test_what_cannot_be_heard_is_said(small_run, causal, audio, tmp_path, words, said):
    (tmp_path / "text.wav").write_text("no audio")
    broken = np.where(np.arange(16_000) == 9000, np.nan, 0)
    soundfile.write(tmp_path / "nan.wav", broken, 16_000, subtype="FLOAT")
    soundfile.write(tmp_path / "half.wav", np.zeros(16_000), 16_000)
    os.truncate(tmp_path / "half.wav", 16_000)
    soundfile.write(tmp_path / "long.flac", np.zeros(16_000), 16_000)
    claims = bytearray((tmp_path / "long.flac").read_bytes())
    claims[21:26] = bytes([claims[21] | 0x0F, 0xFF, 0xFF, 0xFF, 0xFF])  # 2^36 - 1 samples
    (tmp_path / "long.flac").write_bytes(claims)
    base = {"run": str(causal), "audio": str(audio)}
    given = dict(word.split("=", 1) for word in words)
    if given.get("run") == "RUN":
        given["run"] = str(small_run.run_dir)
    line = [f"{key}={value}" for key, value in (base | given).items()]
    ended = small_run.programs.run("stream", *line, cwd=tmp_path)
    assert (ended.code, said in ended.printed) == (2, True), ended.printed


def test_a_word_that_comes_only_at_the_end_is_the_first(capsys):
    class Late:
        state, chunk_s = None, 0.32

        def accept(self, samples):
            return Partial("", False)

        def finish(self):
            return Partial("yes", True)

    _Listener(Late(), 8000).listen(iter([np.zeros(4000, np.float32)] * 3))
    printed = capsys.readouterr()
    assert printed.out == "yes\n"
    assert "first word after 1.50 s of audio" in " ".join(printed.err.split())


@pytest.mark.parametrize("samples", [0, 1, 100])
def test_next_to_nothing_ends_well(small_run, causal, tmp_path, samples):
    soundfile.write(tmp_path / "a.wav", np.zeros((samples, 8)), 8000)
    ended = small_run.run("stream", f"run={causal}", f"audio={tmp_path}/a.wav")
    assert ended.code == 0, ended.printed
    assert "no word" in ended.printed
    assert "a.wav has 8 channels" in ended.printed


def test_a_file_that_breaks_off_while_it_is_heard_leaves_its_text_and_a_line(tmp_path):
    soundfile.write(tmp_path / "a.flac", np.random.default_rng(0).normal(size=160_000) * 0.1, 16_000)
    file = soundfile.SoundFile(tmp_path / "a.flac")
    whole = (tmp_path / "a.flac").read_bytes()
    (tmp_path / "a.flac").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunFailed, match=r"audio: .*a\.flac could not be read after .* s: "):
        list(_from_file(file, 1600, at_own_pace=False))
