"""Features of pieces, of other rates, and options that cannot be meant."""

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from lhotse import Recording
from omegaconf import OmegaConf

from asr.data.features import FeatureStream, LogMel, Waveform, at_rate
from asr.data.loading.augmentation import AddNoise, Reverberate
from asr.data.loading.loader import Workers
from asr.data.preparation.cuts import Limits
from tests.configs import choice


def whole(features: LogMel, samples: np.ndarray, rate_hz: int, folder) -> np.ndarray:
    soundfile.write(folder / "a.wav", samples, rate_hz, subtype="FLOAT")
    return features(Recording.from_file(folder / "a.wav").to_cut())


def pieces(samples: np.ndarray, longest: int, seed: int = 0):
    drawn = np.random.default_rng(seed)
    while len(samples):
        size = int(drawn.integers(0, longest + 1))
        yield samples[:size]
        samples = samples[size:]


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("longest", [7, 300, 5_000, 100_000])
def test_pieces_of_any_size_give_the_features_of_the_whole(tmp_path, rate_hz, longest):
    features = LogMel()
    num = rate_hz // 5 if longest == 7 else 2 * rate_hz + 123
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, num).astype(np.float32)
    stream = FeatureStream(features, rate_hz)
    found = np.concatenate([*(stream.accept(piece) for piece in pieces(samples, longest)), stream.finish()])
    expected = whole(features, samples, rate_hz, tmp_path)
    assert found.shape == expected.shape
    if rate_hz == features.sampling_rate_hz:
        np.testing.assert_allclose(found, expected, atol=1e-5)
    # resampling rounds differently, which the logarithm of a bin that is all but empty shows
    loudest = expected.max(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(found - loudest), np.exp(expected - loudest), atol=1e-5)
    assert np.abs(found - expected).mean() < 1e-5


@pytest.mark.parametrize("options", [{"frame_shift_ms": 12.5}, {"frame_shift_ms": 25.0}, {"sampling_rate_hz": 8000}])
def test_other_frames(tmp_path, options):
    features = LogMel(num_mels=20, **options)
    samples = np.random.default_rng(2).uniform(-0.5, 0.5, 20_011).astype(np.float32)
    stream = FeatureStream(features, features.sampling_rate_hz)
    found = np.concatenate([*(stream.accept(piece) for piece in pieces(samples, 999)), stream.finish()])
    np.testing.assert_allclose(found, whole(features, samples, features.sampling_rate_hz, tmp_path), atol=1e-5)


def test_frames_come_as_soon_as_they_can_and_memory_does_not_grow():
    stream = FeatureStream(LogMel(), 16_000)
    num_frames = 0
    for number in range(1, 2_001):
        num_frames += len(stream.accept(np.full(160, 0.1, dtype=np.float32)))
        # a frame ends 7.5 ms after its own samples
        assert num_frames == max(0, number - 1)
        assert len(stream.kept) <= 600


@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
@pytest.mark.parametrize("wrong", [np.nan, -np.inf])
def test_samples_that_are_not_finite_are_refused_and_leave_no_trace(rate_hz, wrong):
    stream, undisturbed = FeatureStream(LogMel(), rate_hz), FeatureStream(LogMel(), rate_hz)
    samples = np.random.default_rng(3).uniform(-0.5, 0.5, rate_hz).astype(np.float32)
    broken = samples.copy()
    broken[rate_hz // 4] = wrong
    found = [stream.accept(samples)]
    with pytest.raises(ValueError, match=rf"sample {5 * rate_hz // 4} \(1\.250 s\) is .*; samples must be"):
        stream.accept(broken)
    found += [stream.accept(samples), stream.finish()]
    expected = [undisturbed.accept(samples), undisturbed.accept(samples), undisturbed.finish()]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))


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


@pytest.mark.parametrize(
    ("make", "options", "name"),
    [
        (AddNoise, {}, "folder"),
        (AddNoise, {"folder": "x", "snr_db": (20.0, 0.0)}, "snr_db"),
        (Reverberate, {"rt60_s": (0.0, 1.0)}, "rt60_s"),
        (LogMel, {"precomputed": True, "on_device": True}, "on_device"),
        (Waveform, {"sampling_rate_hz": 11_025}, "frame_ms"),
        (Limits, {"min_duration_s": 2.0, "max_duration_s": 1.0}, "min_duration_s"),
        (Limits, {"min_duration_s": 0.1, "max_duration_s": float("nan")}, "max_duration_s"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(make, options, name):
    with pytest.raises(ValueError, match=name):
        make(**options)


@pytest.mark.parametrize(("gpus", "cores", "workers"), [(0, 64, 1), (1, 16, 8), (2, 16, 7), (8, 16, 1), (8, 4, 1)])
def test_workers_are_as_many_as_the_cores_of_a_gpu_allow(monkeypatch, gpus, cores, workers):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert (Workers().count, Workers(3).count) == (workers, 3)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, Path("~/.cache/werdict/digits")),
        ({"XDG_CACHE_HOME": "/var/x"}, Path("/var/x/werdict/digits")),
        ({"XDG_CACHE_HOME": "/var/x", "WERDICT_CACHE": "/big"}, Path("/big/digits")),
    ],
)
def test_data_lie_in_one_cache_whatever_the_current_folder(variables, folder, monkeypatch):
    for name in ("XDG_CACHE_HOME", "WERDICT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Path(OmegaConf.merge(choice("data", "default"), {"corpus": "digits"}).dir) == folder
