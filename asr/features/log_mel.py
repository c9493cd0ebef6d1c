"""Log-mel features, their global normalization, and the pauses that their energy shows.

B batch, T frames, F mel bins, N samples, W samples of a window, S bins of a spectrum, P pauses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
QUIET = 0.1  # of the way from background to speech
BACKGROUND, SPEECH = 0.05, 0.95  # quantiles of the energy
NUM_SMOOTHED = 3  # frames


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
        self.fft_length = 2 ** math.ceil(math.log2(options.window))
        self.window = nn.Buffer(torch.hann_window(options.window, periodic=False) ** 0.85, persistent=False)
        self.filters = nn.Buffer(_filters(options, self.fft_length), persistent=False)

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


def frame_energies(samples: Tensor) -> Tensor:
    """Return the logarithms of energies, (T, 1), of frames of samples (T, F), without offset and hum as in log-mel."""
    audio = samples.float().flatten()
    return audio.diff(prepend=audio[:1]).view_as(samples).square().mean(dim=1, keepdim=True).clamp(min=1e-10).log()


def find_pauses(log_mel: Tensor) -> NDArray[np.int64]:
    """Return the first frame of each pause, and the frame after its last: (P, 2), in order.

    A frame belongs to a pause if the logarithm of its energy, smoothed over three frames, is near that of the quietest
    frames of the utterance. On digits joined with silence between them these limits find most ends of words; they are
    no more than that.

    Args:
        log_mel: (T, F) logarithms of energies, of log-mel features or of `frame_energies`.
    """
    if not len(log_mel):
        return np.zeros((0, 2), dtype=np.int64)
    smooth = averaged(torch.logsumexp(log_mel.float(), dim=-1).cpu().numpy(), NUM_SMOOTHED)
    background, speech = np.quantile(smooth, [BACKGROUND, SPEECH])
    quiet = smooth < background + QUIET * (speech - background)
    return stretches(quiet)


def averaged(values: NDArray[np.float32], num: int) -> NDArray[np.float32]:
    """Return the mean of an odd number of neighbors of each value, at least one."""
    return np.convolve(np.pad(values, num // 2, mode="edge"), np.full(num, 1 / num, dtype=np.float32), "valid")


def stretches(holds: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the first frame of each stretch where something holds, and the frame after its last: (N, 2)."""
    return np.flatnonzero(np.diff(holds, prepend=False, append=False)).reshape(-1, 2)


class GlobalNorm(nn.Module):
    """Shifts and scales every feature by its mean and standard deviation over the training data.

    The statistics are buffers, so a checkpoint holds them.

    Args:
        mean: F means.
        std: F standard deviations, all positive.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std, default=0.0) <= 0:
            raise ValueError(f"need as many means as positive deviations, given {len(mean)} and {list(std)[:3]} …")
        self.mean = nn.Buffer(torch.tensor(mean, dtype=torch.float32))
        self.inverse_std = nn.Buffer(1.0 / torch.tensor(std, dtype=torch.float32))

    def forward(self, features: Tensor) -> Tensor:
        """Return features (B, T, F) with zero mean and unit variance over the training data."""
        return (features - self.mean) * self.inverse_std
