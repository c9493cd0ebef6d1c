"""asr-stream: files and standard input, with a causal Zipformer."""

import os
import subprocess
import sys

import numpy as np
import pytest
import soundfile

from asr.commands.stream import StreamListener, run
from asr.data.manifests.audio_files import packets_of_file
from asr.inference.streaming import Partial
from tests.configs import composed
from werdict.errors import ConfigError, RunFailed


@pytest.fixture
def audio(small_run):
    return small_run.audio


def test_a_stream_has_the_text_of_the_whole_file(small_run, causal, audio):
    whole = small_run.run("transcribe", f"run={causal}", f"audio={audio}", "max_segment_s=100")
    text = whole.printed.splitlines()[-1].partition("\t")[2]
    for packet_s in (0.01, 5):
        words = (f"run={causal}", f"audio={audio}", f"packet_s={packet_s}", "endpoint_s=100")
        ended = small_run.run("stream", *words)
        *lines, last = ended.printed.splitlines()
        assert " ".join(lines) == text
        assert "s of audio in chunks of 0.32 s, each" in last


def test_standard_input_is_read_to_its_end_though_half_a_sample_is_left(causal, audio, small_run):
    samples, rate_hz = soundfile.read(audio, dtype="int16")
    words = ("stream", f"run={causal}", "audio=-", f"sampling_rate_hz={rate_hz}")
    command = [sys.executable, "-m", "asr.commands", *words]
    done = subprocess.run(command, input=samples.tobytes() + b"\1", capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    of_file = small_run.run("stream", f"run={causal}", f"audio={audio}")
    assert done.stdout.decode().splitlines() == of_file.printed.splitlines()[:-1]
    assert f"{len(samples) / rate_hz:.1f} s of audio" in done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run=first"], "TransformerEncoder"),
        (["audio=none.wav"], "audio: 'none.wav'"),
        (["audio=text.wav"], "audio: text.wav"),
        (["audio=half.wav"], "audio: truncated audio: "),
        (["audio=nan.wav"], "sample 9000 (0.562 s) is nan"),
        (["audio=-", "at_own_pace=true"], "at_own_pace"),
    ],
)
def test_what_cannot_be_streamed_is_named(small_run, causal, tmp_path, words, said):
    (tmp_path / "text.wav").write_text("no audio")
    broken = np.where(np.arange(16_000) == 9000, np.nan, 0)
    soundfile.write(tmp_path / "nan.wav", broken, 16_000, subtype="FLOAT")
    soundfile.write(tmp_path / "half.wav", np.zeros(16_000), 16_000)
    os.truncate(tmp_path / "half.wav", 16_000)
    (tmp_path / "first").symlink_to(small_run.run_dir)
    line = (f"run={causal}", f"audio={small_run.audio}", *words)  # of two words of one key the last one holds
    ended = small_run.programs.run("stream", *line, cwd=tmp_path, code=2)
    assert said in ended.printed


def test_samples_are_not_read_from_where_there_are_none(monkeypatch):
    terminal = os.fdopen(os.openpty()[1])
    for stdin in (None, terminal):
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(ConfigError, match="audio=-"):
            run(composed("run=x", "audio=-", command="stream").options)


def test_a_word_that_comes_only_at_the_end_is_the_first(capsys):
    class Late:
        state, chunk_s = None, 0.32

        def accept(self, samples):
            return Partial("", False)

        def finish(self):
            return Partial("yes", True)

    StreamListener(Late(), 8000).listen(iter([np.zeros(4000, np.float32)] * 3))
    printed = capsys.readouterr()
    assert printed.out == "yes\n"
    assert "first word after 1.50 s of audio" in " ".join(printed.err.split())


@pytest.mark.parametrize("samples", [0, 100])
def test_next_to_nothing_ends_well(small_run, causal, tmp_path, samples):
    soundfile.write(tmp_path / "a.wav", np.zeros((samples, 8)), 8000)
    ended = small_run.run("stream", f"run={causal}", f"audio={tmp_path}/a.wav")
    assert "no word" in ended.printed


def test_a_file_that_breaks_off_while_it_is_read_is_named(tmp_path):
    soundfile.write(tmp_path / "a.flac", np.random.default_rng(0).normal(size=160_000) * 0.1, 16_000)
    file = soundfile.SoundFile(tmp_path / "a.flac")
    whole = (tmp_path / "a.flac").read_bytes()
    (tmp_path / "a.flac").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunFailed, match=r"audio: .*a\.flac"):
        list(packets_of_file(file, 1600, at_own_pace=False))
