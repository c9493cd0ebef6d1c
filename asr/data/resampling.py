"""Audio at another rate: one formula, whatever is installed.

lhotse (1.33) resamples by torchaudio's formula where torchaudio is installed, and by another one, of scipy, where it is
not: the highest mel bins would depend on the machine, and differ from those of the runtimes that models are exported
to, which use the first formula as Kaldi does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from lhotse.augmentation import Resample
from lhotse.augmentation import torchaudio as cached
from lhotse.augmentation.resample import Resample as SincFilter
from lhotse.cut import Cut
from lhotse.utils import fastcopy

MAX_FILTERS = 64  # of a few MB each


@dataclass
class SincResample(Resample):
    """lhotse's ``Resample`` by interpolation with a windowed sinc.

    Reference:
        Smith and Gossett 1984, "A flexible sampling-rate conversion method", ICASSP, with a Hann window over 6 zero
        crossings on each side, and a roll-off of 0.99: the defaults of torchaudio.functional.resample, and of Kaldi's
        LinearResample (feat/resample.h) where it prepares audio for features.
    """

    def __call__(self, samples: np.ndarray, *args: object, **kwargs: object) -> np.ndarray:
        """Return audio (channels, samples) float32 at the target rate."""
        if self.source_sampling_rate == self.target_sampling_rate:
            return samples
        # lhotse keeps every filter that it has used; manifests may need thousands
        if len(cached._precompiled_resamplers) > MAX_FILTERS:
            cached._precompiled_resamplers.clear()
        resampler: SincFilter = cached.get_or_create_resampler(self.source_sampling_rate, self.target_sampling_rate)
        resampled: np.ndarray = resampler(torch.from_numpy(samples)).numpy()
        return resampled


def at_rate(cut: Cut, rate_hz: int) -> Cut:
    """Return the cut at a rate, resampled by the sinc wherever its recording is resampled."""
    cut = cut if cut.sampling_rate == rate_hz else cut.resample(rate_hz)
    transforms = cut.recording.transforms or ()
    if not any(type(transform) is Resample for transform in transforms):
        return cut
    replaced = [
        SincResample(each.source_sampling_rate, each.target_sampling_rate) if type(each) is Resample else each
        for each in transforms
    ]
    return fastcopy(cut, recording=fastcopy(cut.recording, transforms=replaced))
