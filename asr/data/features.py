"""Features of a cut: computed while training from resampled audio, read from disk, or the audio itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
import torch
from lhotse import Fbank, FbankConfig
from lhotse.augmentation import Resample
from lhotse.augmentation import torchaudio as cached
from lhotse.augmentation.resample import Resample as SincFilter
from lhotse.cut import Cut
from lhotse.utils import fastcopy
from pydantic import Field, PositiveInt

from asr.data.manifests.audio import cause as cause
from asr.data.manifests.audio import reading
from asr.data.manifests.corpus import InMemory
from asr.features.log_mel import LogMelOptions, whole_frames

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
