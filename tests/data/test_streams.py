"""Features of pieces of audio are those of the whole."""

import numpy as np
import pytest
import soundfile
from lhotse import Recording

from asr.data.features import FeatureStream, LogMel


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
