import numpy as np
import pytest
import torch
from lhotse import Fbank, FbankConfig

from asr.features.log_mel import find_pauses


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
