"""Audio at another rate, against the formula in float64 and torchaudio itself."""

import numpy as np
import pytest
import soundfile
from lhotse import Recording

from asr.data.features import LogMel, at_rate

RATES_HZ = [8_000, 11_025, 22_050, 44_100, 48_000, 96_000]


def windowed_sinc(audio: np.ndarray, source_hz: int, target_hz: int) -> np.ndarray:
    """Return audio at ``target_hz``, each sample on its own: a Hann window over 6 zero crossings, roll-off 0.99."""
    cutoff_hz = 0.99 * min(source_hz, target_hz)
    times_s = np.arange(-(-len(audio) * target_hz // source_hz))[:, None] / target_hz
    crossings = (np.arange(len(audio)) / source_hz - times_s) * cutoff_hz
    window = np.where(abs(crossings) < 6, np.cos(np.pi * crossings / 12) ** 2, 0)
    return (window * np.sinc(crossings) * cutoff_hz / source_hz) @ audio


@pytest.fixture(params=RATES_HZ)
def recording(request, tmp_path) -> Recording:
    noise = np.random.default_rng(request.param).uniform(-0.9, 0.9, request.param // 20)
    soundfile.write(tmp_path / "a.wav", noise, request.param, subtype="FLOAT")
    return Recording.from_file(tmp_path / "a.wav")


def test_audio_is_interpolated_by_the_windowed_sinc(recording):
    (audio,), rate_hz = recording.load_audio(), recording.sampling_rate
    (resampled,) = at_rate(recording.to_cut(), 16_000).load_audio()
    # torchaudio, and lhotse with it, computes the phases of its filters in float32
    np.testing.assert_allclose(resampled, windowed_sinc(audio.astype(float), rate_hz, 16_000), atol=5e-5)


def test_a_recording_that_its_manifest_resamples_is_interpolated_alike(recording):
    there = at_rate(recording.to_cut(), 16_000).load_audio()
    np.testing.assert_array_equal(at_rate(recording.resample(16_000).to_cut(), 16_000).load_audio(), there)


def test_features_of_another_rate_have_its_speech_in_the_same_bins(tmp_path):
    """The loudest bin of a tone is that of the tone at the rate of the features."""
    for rate_hz in (16_000, *RATES_HZ):
        tone = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(rate_hz // 5) / rate_hz)
        soundfile.write(tmp_path / f"{rate_hz}.wav", tone, rate_hz, subtype="FLOAT")
    matrices = [LogMel()(Recording.from_file(file).to_cut()) for file in sorted(tmp_path.glob("*.wav"))]
    loudest = [matrix[5:15].argmax(axis=1).tolist() for matrix in matrices]
    assert loudest == [loudest[0]] * len(matrices)
    levels = np.array([matrix[5:15].max() for matrix in matrices])
    np.testing.assert_allclose(levels, levels[0], atol=0.02)
