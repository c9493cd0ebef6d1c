"""Features of audio that arrives in pieces, equal to those of the whole.

N samples, T frames, F mel bins.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from lhotse.augmentation.resample import Resample as SincFilter
from numpy.typing import NDArray

from asr.data.features import LogMel

Samples = NDArray[np.float32]


class FeatureStream:
    """Turns samples into log-mel features as soon as all that a frame sees has arrived.

    Pieces of any size give what ``LogMel`` gives for the whole: each is computed with enough of what came before, and
    the frames that would see more than has arrived wait.

    Args:
        features: of the model.
        rate_hz: of the samples; other rates than that of the features are resampled.
    """

    def __init__(self, features: LogMel, rate_hz: int) -> None:
        self.extractor, self.options, self.rate_hz = features.extractor, features.options, features.sampling_rate_hz
        self.shift = self.options.shift
        before = (self.options.window - self.shift) // 2  # samples that a frame sees before its own
        self.after = self.options.window - before
        self.num_context = -(-max(before, 0) // self.shift)  # frames
        self.resampler = None if rate_hz == self.rate_hz else _ResampledStream(rate_hz, self.rate_hz)
        self.kept, self.num_done = np.zeros(0, dtype=np.float32), 0  # samples, of which the first belong to frames done
        self.num_heard, self.heard_hz = 0, rate_hz  # samples as they came, and their rate

    def accept(self, samples: Samples) -> Samples:
        """Return the features (T, F) that are new with samples (N,); perhaps none.

        Raises:
            ValueError: a sample is not finite; none of them is used.
        """
        # one of them would be in every later chunk, through the encoder's state
        if (wrong := np.flatnonzero(~np.isfinite(samples))).size:
            place = self.num_heard + int(wrong[0])
            raise ValueError(
                f"sample {place} ({place / self.heard_hz:.3f} s) is {samples[wrong[0]]}; samples must be finite, "
                "usually in [-1, 1]"
            )
        self.num_heard += len(samples)
        resampled = samples if self.resampler is None else self.resampler.accept(samples)
        self.kept = np.concatenate((self.kept, resampled))
        return self._new((len(self.kept) - self.after) // self.shift + 1)

    def finish(self) -> Samples:
        """Return the features (T, F) that waited for the end."""
        if self.resampler is not None:
            self.kept = np.concatenate((self.kept, self.resampler.finish()))
        return self._new(self.options.num_frames(len(self.kept)))

    def _new(self, num_frames: int) -> Samples:
        """Return features of the kept samples up to a frame, without those that were returned before."""
        num_new = num_frames - self.num_done
        if num_new <= 0 or len(self.kept) < self.shift:
            return np.zeros((0, self.options.num_mels), dtype=np.float32)
        matrix: Samples = self.extractor.extract(self.kept, self.rate_hz)[self.num_done : num_frames]
        dropped = max(0, num_frames - self.num_context)
        self.kept, self.num_done = self.kept[dropped * self.shift :], num_frames - dropped
        return matrix


class _ResampledStream:
    """Resamples pieces as ``SincResample`` does the whole."""

    def __init__(self, source_hz: int, target_hz: int) -> None:
        self.filter = SincFilter(source_hz, target_hz)
        common = math.gcd(source_hz, target_hz)
        self.source, self.target = source_hz // common, target_hz // common  # samples of a period of both
        self.num_context = -(-self.filter.width // self.source)  # periods
        self.kept, self.num_done = np.zeros(0, dtype=np.float32), 0  # samples, and periods of them that are done
        self.num_dropped = 0  # periods before these

    def accept(self, samples: Samples) -> Samples:
        """Return the resampled audio that sees no more than has arrived."""
        self.kept = np.concatenate((self.kept, samples))
        periods = (len(self.kept) - self.filter.width) // self.source - 1
        if periods <= self.num_done:
            return np.zeros(0, dtype=np.float32)
        resampled = self._resampled()[self.num_done * self.target : periods * self.target]
        dropped = max(0, periods - self.num_context)
        self.kept, self.num_done = self.kept[dropped * self.source :], periods - dropped
        self.num_dropped += dropped
        return resampled

    def finish(self) -> Samples:
        """Return the rest."""
        if not len(self.kept):
            return self.kept
        # lhotse rounds the number of samples, the filter takes the next larger one
        num_samples = self.num_dropped * self.source + len(self.kept)
        num_resampled = (2 * num_samples * self.target + self.source) // (2 * self.source)
        return self._resampled()[self.num_done * self.target : num_resampled - self.num_dropped * self.target]

    def _resampled(self) -> Samples:
        resampled: Samples = self.filter(torch.from_numpy(self.kept)).numpy()
        return resampled
