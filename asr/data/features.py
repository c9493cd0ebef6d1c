"""Features of a cut: computed while training, or computed before and read from disk.

N samples, T frames, F mel bins.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import numpy as np
from lhotse import Fbank, FbankConfig
from lhotse.cut import Cut
from lhotse.utils import fastcopy
from pydantic import Field, PositiveInt

from asr.data.manifests.audio_checks import cause as cause
from asr.data.manifests.audio_checks import reading
from asr.data.manifests.feature_storage import InMemory
from asr.data.resampling import at_rate
from asr.features.log_mel import LogMelOptions, whole_frames

FrameShiftMs = Annotated[float, Field(gt=0, le=25)]  # a window has 25


class Features(Protocol):
    """How a cut becomes a matrix of features."""

    num_features: int
    frame_shift_s: float
    precomputed: bool  # read from disk in training
    on_device: bool  # loaders bring audio; the device of the recognizer makes features of it
    from_audio: bool
    sampling_rate_hz: int  # of audio when features are made from it; 0 if they are not
    content: str  # what the numbers of a frame are: "spectrum" or "samples"

    def __call__(self, cut: Cut) -> np.ndarray:
        """Return (T, F) float32."""


def read_features(features: Features, cut: Cut) -> np.ndarray:
    """Return finite features (T, F) float32.

    Raises:
        ValueError: they cannot be read, or are not finite.
        OutOfMemory: memory ran out.
    """
    with reading(cut.id):
        matrix = features(cut)
    refuse_infinite(matrix)
    return matrix


def refuse_infinite(numbers: np.ndarray) -> None:
    """Refuse features (T, F), or samples (N,), that cannot be trained on.

    Raises:
        ValueError: one is NaN or infinite.
    """
    if not np.isfinite(numbers).all():
        raise ValueError("features are not finite; they, or their audio, contain NaN or infinity")


class LogMel:
    """Kaldi-compatible log-mel filter banks (lhotse's Fbank), computed per cut: padding never enters a window.

    Args:
        num_mels: mel bins.
        sampling_rate_hz: rate of the audio; other rates are resampled to it.
        frame_shift_ms: distance between frames, at most 25; rounded down to whole samples.
        precomputed: compute once when preparing and read from disk, instead of computing when a cut is read.
        on_device: load audio when training and decoding, and compute on the device of the recognizer, in batches;
            the same features within 1e-4. Preparing and streaming compute per cut.
    """

    from_audio = True
    content = "spectrum"

    def __init__(
        self,
        num_mels: PositiveInt = 80,
        sampling_rate_hz: PositiveInt = 16_000,
        frame_shift_ms: FrameShiftMs = 10.0,
        precomputed: bool = False,
        on_device: bool = False,
    ) -> None:
        if precomputed and on_device:
            raise ValueError("precomputed features are read from disk; choose precomputed=true or on_device=true")
        self.num_features, self.sampling_rate_hz, self.precomputed = num_mels, sampling_rate_hz, precomputed
        self.on_device = on_device
        _, self.frame_shift_s = whole_frames(frame_shift_ms / 1000, sampling_rate_hz)
        self.options = LogMelOptions(num_mels, sampling_rate_hz, self.frame_shift_s)
        self.extractor = Fbank(
            FbankConfig(sampling_rate=sampling_rate_hz, num_mel_bins=num_mels, frame_shift=self.frame_shift_s)
        )

    def __call__(self, cut: Cut) -> np.ndarray:
        """Return log-mel features (T, F) float32 of the cut's first channel."""
        if self.precomputed and cut.has_features:
            return cut.load_features()
        return self.extractor.extract(self.audio(cut), self.sampling_rate_hz)

    def with_features(self, cut: Cut) -> Cut:
        """Return a cut with features that are computed from its audio, and held in memory."""
        stored = at_rate(cut, self.sampling_rate_hz).compute_and_store_features(self.extractor, InMemory())
        # lhotse alone reads its own transforms
        return fastcopy(cut.resample(self.sampling_rate_hz), features=stored.features)

    def audio(self, cut: Cut) -> np.ndarray:
        """Return samples (N,) float32 of the cut's first channel, at the rate of the features."""
        audio: np.ndarray = at_rate(cut, self.sampling_rate_hz).load_audio()[0]
        # lhotse 1.33 mirrors half a window at each end; shorter audio ends in a RuntimeError of setStorage
        window_s = self.extractor.config.frame_length
        if len(audio) < window_s / 2 * self.sampling_rate_hz:
            raise ValueError(
                f"too short: {len(audio)} samples at {self.sampling_rate_hz} Hz; features need {window_s / 2 * 1000} ms"
            )
        return audio


class PrecomputedFeatures:
    """Features of a corpus that has no audio, of any floating or integer type.

    Args:
        num_features: F.
        frame_shift_ms: distance between frames.
    """

    precomputed = True
    on_device = False
    from_audio = False
    sampling_rate_hz = 0
    content = "spectrum"  # or its cepstrum

    def __init__(self, num_features: int, frame_shift_ms: float = 10.0) -> None:
        self.num_features, self.frame_shift_s = num_features, frame_shift_ms / 1000

    def __call__(self, cut: Cut) -> np.ndarray:
        """Return the stored features (T, F) float32."""
        with np.errstate(over="ignore"):  # what is infinite then is refused by those who read it
            features = cut.load_features().astype(np.float32, copy=False, casting="same_kind")
        shape, shift_s = (cut.num_frames, self.num_features), cut.features.frame_shift
        if features.shape != shape or abs(shift_s - self.frame_shift_s) > 1e-6:
            raise ValueError(
                f"cut {cut.id!r} has features of shape {features.shape} every {1000 * shift_s:g} ms, expected {shape} "
                f"every {1000 * self.frame_shift_s:g} ms"
            )
        return features
