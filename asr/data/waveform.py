"""Raw audio: as features, for encoders that compute their own, and to listen to.

T frames, F samples of a frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from lhotse.cut import Cut

from asr.data.resampling import at_rate

PLAYED_HZ = 16_000  # rate at which people listen to utterances


def read_audio(cuts: Iterable[Cut], ids: Collection[str]) -> dict[str, np.ndarray]:
    """Return the audio (N,) float32, at ``PLAYED_HZ``, of the cuts of these ids, as far as it can be read."""
    audio = {}
    for cut in cuts if ids else ():
        if cut.id in ids and cut.has_recording:
            try:
                audio[cut.id] = at_rate(cut, PLAYED_HZ).load_audio()[0]
            except Exception:  # a decoder may raise anything; data of features may have lost their audio
                continue
    return audio


class Waveform:
    """Frames of raw audio, which follow each other without overlap.

    Args:
        sampling_rate_hz: rate of the audio; other rates are resampled to it.
        frame_ms: length of a frame, a whole number of samples F.
    """

    precomputed = False
    on_device = False
    from_audio = True
    content = "samples"

    def __init__(self, sampling_rate_hz: int = 16_000, frame_ms: float = 10.0) -> None:
        self.num_features = round(sampling_rate_hz * frame_ms / 1000)
        if self.num_features < 1 or abs(self.num_features - sampling_rate_hz * frame_ms / 1000) > 1e-6:
            raise ValueError(f"frame_ms must be a whole number of samples at {sampling_rate_hz} Hz, given {frame_ms}")
        self.sampling_rate_hz, self.frame_shift_s = sampling_rate_hz, frame_ms / 1000

    def __call__(self, cut: Cut) -> np.ndarray:
        """Return samples (T, F) float32 of the cut's first channel; half a frame at the end counts, filled by zeros."""
        samples: np.ndarray = at_rate(cut, self.sampling_rate_hz).load_audio()[0]
        num_frames = max(1, (2 * len(samples) + self.num_features) // (2 * self.num_features))
        frames = np.zeros(num_frames * self.num_features, np.float32)
        frames[: len(samples)] = samples[: len(frames)]
        return frames.reshape(num_frames, self.num_features)
