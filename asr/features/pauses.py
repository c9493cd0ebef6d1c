"""Pauses in speech, by the energy of its features.

T frames, F mel bins, P pauses.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

QUIET = 0.1  # of the way from background to speech
BACKGROUND, SPEECH = 0.05, 0.95  # quantiles of the energy
NUM_SMOOTHED = 3  # frames


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
