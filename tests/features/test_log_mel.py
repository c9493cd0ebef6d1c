"""Log-mel features, their normalization, and the pauses in them."""

import numpy as np
import pytest
import soundfile
import torch
from lhotse import Fbank, FbankConfig, MonoCut, Recording, validate

from asr.data.features import LogMel, LogMelFilterbank
from asr.features.log_mel import GlobalNorm, LogMelOptions, find_pauses

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def audio(num_samples: int, seed: int = 0) -> np.ndarray:
    """Noise whose level changes a thousandfold, with an offset."""
    rng = np.random.default_rng(seed)
    level = 10 ** (3 * np.sin(np.arange(num_samples) / 3000) - 3)
    return (level * rng.normal(size=num_samples) * 0.1 + 0.01).astype(np.float32)


def of_lhotse(options: LogMelOptions, samples: np.ndarray) -> np.ndarray:
    config = FbankConfig(
        sampling_rate=options.sampling_rate_hz, num_mel_bins=options.num_mels, frame_shift=options.frame_shift_s
    )
    return Fbank(config).extract(samples, options.sampling_rate_hz)


def batch(options: LogMelOptions, utterances: list[np.ndarray], padding: float, device: str = "cpu") -> torch.Tensor:
    mirrored = [torch.from_numpy(options.mirrored(samples)) for samples in utterances]
    longest = max(map(len, mirrored))
    padded = torch.stack([torch.nn.functional.pad(x, (0, longest - len(x)), value=padding) for x in mirrored])
    num_frames = torch.tensor([options.num_frames(len(samples)) for samples in utterances])
    return LogMelFilterbank(options).to(device)(padded.to(device), num_frames.to(device)).cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rate_hz", [4_000, 8_000, 11_025, 16_000, 44_100, 192_000])
@pytest.mark.parametrize(("num_mels", "shift_s"), [(80, 0.01), (23, 0.0125), (256, 0.005), (80, 0.025)])
def test_features_are_those_of_lhotse(rate_hz, num_mels, shift_s, device):
    options = LogMelOptions(num_mels, rate_hz, shift_s)
    # the shortest that lhotse takes, ends within and between frames, a part of a second
    for num_samples in (
        -(-options.window // 2),
        options.window,
        3 * options.shift + 7,
        rate_hz // 2,
        rate_hz // 2 + 37,
    ):
        samples = audio(num_samples)
        expected = of_lhotse(options, samples)
        found = batch(options, [samples], 0.0, device)[0].numpy()
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_silence_has_the_least_log_mel():
    options = LogMelOptions(80, 16_000, 0.01)
    silence = np.zeros(16_000, dtype=np.float32)
    np.testing.assert_array_equal(batch(options, [silence], 0.0)[0], of_lhotse(options, silence))


def test_padding_never_enters_a_window_and_is_zero_in_features():
    options = LogMelOptions(20, 8_000, 0.01)
    utterances = [audio(num, seed=num) for num in (4_000, 801, 799, 100)]
    features = batch(options, utterances, padding=1e6)
    for matrix, samples in zip(features, utterances, strict=True):
        length = options.num_frames(len(samples))
        np.testing.assert_allclose(matrix[:length], of_lhotse(options, samples), rtol=0, atol=1e-5)
        assert not matrix[length:].any()


def test_features_have_32_bits_under_autocast():
    options = LogMelOptions(20, 8_000, 0.01)
    plain = batch(options, [audio(4_000)], 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(batch(options, [audio(4_000)], 0.0), plain)


@pytest.mark.parametrize("rate_hz", [4_008, 11_025, 16_000, 22_050])  # of some, 10 ms are no whole number of samples
def test_a_frame_is_where_its_samples_are_at_every_rate(tmp_path, rate_hz):
    samples = np.random.default_rng(0).normal(0, 1e-4, 60 * rate_hz)
    samples[55 * rate_hz : round(55.02 * rate_hz)] *= 1000
    soundfile.write(tmp_path / "a.wav", samples, rate_hz, subtype="FLOAT")
    recording, features = Recording.from_file(tmp_path / "a.wav"), LogMel(40, rate_hz)
    cut = MonoCut("a", 0.0, recording.duration, 0, recording=recording)
    matrix = features(cut)
    assert matrix.sum(axis=1).argmax() * features.frame_shift_s == pytest.approx(55.01, abs=0.015)
    assert len(matrix) * features.frame_shift_s == pytest.approx(60, abs=0.006)
    validate(features.with_features(cut).features)


def test_features_get_zero_mean_and_unit_variance():
    features = torch.randn(4, 500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1]) - 7
    flat = features.flatten(0, 1)
    normalized = GlobalNorm(flat.mean(0).tolist(), flat.std(0).tolist())(features).flatten(0, 1)
    torch.testing.assert_close(normalized.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(normalized.std(0), torch.ones(3), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("mean", "std"), [([0.0], [1.0, 1.0]), ([0.0], [0.0]), ([0.0, 0.0], [1.0, -1.0]), ([], [])], ids=str
)
def test_statistics_that_nothing_can_be_divided_by_are_refused(mean, std):
    with pytest.raises(ValueError, match="as many means as positive deviations"):
        GlobalNorm(mean, std)


def log_mel(*seconds: float, level: float = 0.3, noise: float = 1e-3) -> torch.Tensor:
    """Return features of speech-like noise, and of nothing but background, in turns."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=round(8000 * s)) * (level if n % 2 else 0.0) for n, s in enumerate(seconds)]
    audio = np.concatenate(parts) + rng.normal(size=sum(map(len, parts))) * noise
    extractor = Fbank(FbankConfig(sampling_rate=8000, num_mel_bins=40))
    return torch.from_numpy(extractor.extract(audio.astype(np.float32), 8000))


@pytest.mark.parametrize("level", [0.03, 0.3, 1.0])
def test_pauses_are_found_within_two_frames(level):
    found = find_pauses(log_mel(0.2, 0.5, 0.15, 0.4, 0.3, level=level))
    assert found.shape == (3, 2)
    assert np.abs(found - [[0, 20], [70, 85], [125, 155]]).max() <= 2


@pytest.mark.parametrize("features", [torch.zeros(0, 4), torch.zeros(5, 4), torch.full((50, 4), -15.9), torch.eye(1)])
def test_without_louder_and_quieter_frames_there_are_none(features):
    assert len(find_pauses(features)) == 0
