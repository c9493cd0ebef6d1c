"""Log-mel filter banks of a batch of audio, on any device.

B batch, N samples, T frames, W samples of a window, S bins of a spectrum, F mel bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

WINDOW_S = 0.025
PREEMPHASIS = 0.97
LOWEST_HZ, BELOW_NYQUIST_HZ = 20.0, 400.0


def whole_frames(frame_shift_s: float, rate_hz: int) -> tuple[int, float]:
    """Return the samples between frames, rounded down to a whole number as in Kaldi, and how many seconds these are.

    At 22,050 Hz frames of 10 ms are made every 220 samples, which are 9.977 ms: counted as 10 ms, they would drift.
    """
    samples = math.floor(frame_shift_s * rate_hz)
    exact_s = samples / rate_hz
    # lhotse multiplies again, and rounds down
    return samples, exact_s if math.floor(exact_s * rate_hz) == samples else math.nextafter(exact_s, 1.0)


@dataclass(frozen=True)
class LogMelOptions:
    """What decides log-mel features.

    Attributes:
        num_mels: mel bins F.
        sampling_rate_hz: rate of the audio.
        frame_shift_s: distance between frames, at most 25 ms.
    """

    num_mels: int
    sampling_rate_hz: int
    frame_shift_s: float

    @property
    def shift(self) -> int:
        """Samples between frames."""
        return whole_frames(self.frame_shift_s, self.sampling_rate_hz)[0]

    @property
    def window(self) -> int:
        """Samples W of a window."""
        return math.floor(WINDOW_S * self.sampling_rate_hz)

    def num_frames(self, num_samples: int) -> int:
        """Return the number of frames T of an utterance."""
        return (num_samples + self.shift // 2) // self.shift

    def mirrored(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (N',) samples that the windows of an utterance lie in, one after another: its ends are mirrored.

        Args:
            samples: (N,), at least half a window.
        """
        before = (self.window - self.shift) // 2
        after = (self.num_frames(len(samples)) - 1) * self.shift + self.window - before - len(samples)
        parts = samples[:before][::-1], samples[: min(after, 0) or None], samples[len(samples) - max(after, 0) :][::-1]
        return np.concatenate(parts)


class LogMelFilterbank(nn.Module):
    """Log-mel features as lhotse's ``Fbank`` and Kaldi compute them, without dither.

    Args:
        options: of the features.

    Reference:
        Kaldi, feat/feature-window.cc and feat/mel-computations.cc, with ``snip_edges=false`` and a povey window.
    """

    def __init__(self, options: LogMelOptions) -> None:
        super().__init__()
        self.shift = options.shift
        window = torch.hann_window(options.window, periodic=False) ** 0.85
        self.fft_length = 2 ** math.ceil(math.log2(options.window))
        self.register_buffer("window", window, persistent=False)
        self.register_buffer("filters", _filters(options, self.fft_length), persistent=False)
        self.window: Tensor
        self.filters: Tensor

    def forward(self, audio: Tensor, num_frames: Tensor) -> Tensor:
        """Return features (B, T, F) float32, zero where padded.

        Args:
            audio: (B, N) float32, of each utterance what `LogMelOptions.mirrored` gives, then anything finite.
            num_frames: (B,) int64 valid frames.
        """
        frames = audio.unfold(1, len(self.window), self.shift)
        frames = frames - frames.mean(dim=2, keepdim=True)
        # as in Kaldi, the first sample of a window stands for the one before it
        frames = frames - PREEMPHASIS * F.pad(frames, (1, 0), mode="replicate")[:, :, :-1]
        power = torch.fft.rfft(frames * self.window, n=self.fft_length).abs() ** 2
        # 16 bits could not tell the quiet bins of a spectrum apart
        with torch.autocast(audio.device.type, enabled=False):
            energies = power @ self.filters
        features = energies.clamp(min=torch.finfo(torch.float32).eps).log()
        padding = torch.arange(features.shape[1], device=audio.device) >= num_frames.unsqueeze(1)
        return features.masked_fill(padding.unsqueeze(2), 0.0)


def _filters(options: LogMelOptions, fft_length: int) -> Tensor:
    """Return (S, F) triangles of equal width in mel; no filter covers the last bin of the spectrum."""
    lowest, highest = _mel(LOWEST_HZ), _mel(options.sampling_rate_hz / 2 - BELOW_NYQUIST_HZ)
    width = (highest - lowest) / (options.num_mels + 1)
    # rounded to 32 bits by numpy, as lhotse (1.33) does: some filters cover a single bin, with little of their height
    mel = _mel(options.sampling_rate_hz / fft_length * np.arange(fft_length // 2, dtype=np.float32))[:, None]
    number = np.arange(options.num_mels, dtype=np.float32)
    left, center, right = (np.float32(lowest) + (number + i) * np.float32(width) for i in (0, 1, 2))
    triangles = np.minimum((mel - left) / (center - left), (right - mel) / (right - center)).clip(min=0)
    return F.pad(torch.from_numpy(triangles), (0, 0, 0, 1))


def _mel(hz: Any) -> Any:
    return 1127.0 * np.log(1 + hz / 700)
