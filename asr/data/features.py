"""Features of a cut, or of a stream of samples: computed from resampled audio, read from disk, or the audio itself.

B batch, T frames, F features, N samples.
"""

from __future__ import annotations

import math
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
from lhotse.features.io import MemoryRawWriter
from lhotse.features.kaldi.layers import Wav2LogFilterBank
from lhotse.utils import fastcopy
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor

from asr.data.manifests.audio import cause as cause
from asr.data.manifests.audio import reading
from asr.features.log_mel import LogMelOptions, whole_frames

MAX_FILTERS = 64  # of a few MB each
FrameShiftMs = Annotated[float, Field(gt=0, le=25)]  # a window has 25
PLAYED_HZ = 16_000  # rate at which people listen to utterances
FloatSamples = NDArray[np.float32]


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


class Features(Protocol):
    """Computes or reads the features of a cut."""

    num_features: int
    frame_shift_s: float
    precomputed: bool = False  # read from disk in training
    on_device: bool = False  # loaders bring audio; the device of the recognizer makes features of it
    from_audio: bool = True
    sampling_rate_hz: int = 0  # of audio when features are made from it; 0 if they are not
    content: str = "spectrum"  # what the numbers of a frame are: "spectrum", also its cepstrum, or "samples"

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


class LogMel(Features):
    """Kaldi-compatible log-mel filter banks (lhotse's Fbank), computed per cut: padding never enters a window.

    Args:
        num_mels: mel bins.
        sampling_rate_hz: rate of the audio; other rates are resampled to it.
        frame_shift_ms: distance between frames, at most 25; rounded down to whole samples.
        precomputed: compute once when preparing and read from disk, instead of computing when a cut is read.
        on_device: load audio when training and decoding, and compute on the device of the recognizer, in batches;
            the same features within 1e-4. Preparing and streaming compute per cut.
    """

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
        stored = at_rate(cut, self.sampling_rate_hz).compute_and_store_features(self.extractor, MemoryRawWriter())
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


class LogMelFilterbank(Wav2LogFilterBank):
    """lhotse's filter bank for batches of utterances of any lengths.

    Args:
        options: of the features.
    """

    def __init__(self, options: LogMelOptions) -> None:
        super().__init__(options.sampling_rate_hz, frame_shift=options.frame_shift_s, num_filters=options.num_mels)
        self.wav2win.snip_edges = True  # the ends of each utterance are mirrored already; lhotse warns of the argument

    def forward(self, audio: Tensor, num_frames: Tensor) -> Tensor:
        """Return features (B, T, F) float32, zero where padded.

        Args:
            audio: (B, N) float32, of each utterance what `LogMelOptions.mirrored` gives, then anything finite.
            num_frames: (B,) int64 valid frames.
        """
        # 16 bits could not tell the quiet bins of a spectrum apart
        with torch.autocast(audio.device.type, enabled=False):
            features: Tensor = super().forward(audio)
        padding = torch.arange(features.shape[1], device=audio.device) >= num_frames.unsqueeze(1)
        return features.masked_fill(padding.unsqueeze(2), 0.0)


class PrecomputedFeatures(Features):
    """Features of a corpus that has no audio, of any floating or integer type.

    Args:
        num_features: F.
        frame_shift_ms: distance between frames.
    """

    precomputed = True
    from_audio = False

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


class Waveform(Features):
    """Frames of raw audio, which follow each other without overlap.

    Args:
        sampling_rate_hz: rate of the audio; other rates are resampled to it.
        frame_ms: length of a frame, a whole number of samples F.
    """

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

    def accept(self, samples: FloatSamples) -> FloatSamples:
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

    def finish(self) -> FloatSamples:
        """Return the features (T, F) that waited for the end."""
        if self.resampler is not None:
            self.kept = np.concatenate((self.kept, self.resampler.finish()))
        return self._new(self.options.num_frames(len(self.kept)))

    def _new(self, num_frames: int) -> FloatSamples:
        """Return features of the kept samples up to a frame, without those that were returned before."""
        num_new = num_frames - self.num_done
        if num_new <= 0 or len(self.kept) < self.shift:
            return np.zeros((0, self.options.num_mels), dtype=np.float32)
        matrix: FloatSamples = self.extractor.extract(self.kept, self.rate_hz)[self.num_done : num_frames]
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

    def accept(self, samples: FloatSamples) -> FloatSamples:
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

    def finish(self) -> FloatSamples:
        """Return the rest."""
        if not len(self.kept):
            return self.kept
        # lhotse rounds the number of samples, the filter takes the next larger one
        num_samples = self.num_dropped * self.source + len(self.kept)
        num_resampled = (2 * num_samples * self.target + self.source) // (2 * self.source)
        return self._resampled()[self.num_done * self.target : num_resampled - self.num_dropped * self.target]

    def _resampled(self) -> FloatSamples:
        resampled: FloatSamples = self.filter(torch.from_numpy(self.kept)).numpy()
        return resampled


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
