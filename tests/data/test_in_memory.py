"""Recordings in memory become the samples, or the files, that they are."""

import io

import numpy as np
import pytest
import soundfile
import torch

from asr.commands import api
from asr.data.manifests.audio_files import as_file, mono_samples
from asr.inference.transcripts import Transcript

HALF = np.full(40, 0.5)


@pytest.mark.parametrize(
    "samples",
    [
        HALF,
        HALF.astype(np.float16),
        (HALF * 2**15).astype(np.int16),
        (HALF * 2**31).astype(np.int32),
        torch.from_numpy(HALF).bfloat16().requires_grad_(),
        torch.tensor((HALF * 2**15), dtype=torch.int16),
        np.stack([HALF, 0 * HALF]),
        np.stack([HALF, 0 * HALF], axis=1),
        torch.from_numpy(HALF)[None],
    ],
    ids=lambda samples: f"{samples.dtype} {tuple(samples.shape)}",
)
def test_samples_of_any_type_are_those_of_the_first_channel(samples):
    mono = mono_samples(samples)
    assert (mono.dtype, mono.tolist()) == (np.float32, HALF.tolist())


@pytest.mark.parametrize("samples", [np.arange(9), np.zeros((2, 3, 4)), np.array(["a"]), np.array(0.5)], ids=repr)
def test_other_arrays_are_refused(samples):
    with pytest.raises(ValueError, match="given"):
        mono_samples(samples)


def test_files_keep_their_bytes_and_samples_their_values(tmp_path):
    samples = np.random.default_rng(0).normal(size=100).astype(np.float32)
    assert soundfile.read(as_file(samples, 8000, tmp_path / "0"), dtype="float32")[0].tolist() == samples.tolist()
    assert as_file(io.BytesIO(b"x"), None, tmp_path / "1").read_bytes() == b"x"
    for audio, rate_hz in ((samples, None), (io.StringIO("x"), None), (3, 8000)):
        with pytest.raises(ValueError, match=r"rate_hz|audio"):
            as_file(audio, rate_hz, tmp_path / "2")


def test_transcripts_are_named_as_the_recordings_are(monkeypatch, tmp_path):
    (tmp_path / "a.wav").touch()
    monkeypatch.setattr(api, "transcriber_of", lambda *_: lambda files: ([Transcript(file, ()) for file in files], []))
    recognizer = api.SpeechRecognizer(None)
    with open(tmp_path / "a.wav", "rb") as file:
        found = recognizer.transcribe(["b.wav", HALF, file, io.BytesIO(b"")], rate_hz=8000)
    assert [str(one.path) for one in found] == ["b.wav", "audio[1]", str(tmp_path / "a.wav"), "audio[3]"]
    assert [str(one.path) for one in recognizer.transcribe("b.wav")] == ["b.wav"]
