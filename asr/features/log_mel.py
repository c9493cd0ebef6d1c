"""Frames of log-mel features, their global normalization, and the pauses that their energy shows.

B batch, T frames, F mel bins, N samples, W samples of a window, P pauses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

WINDOW_S = 0.025
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
