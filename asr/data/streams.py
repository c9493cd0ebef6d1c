"""Audio that is not a file of a corpus: in memory, in packets, and its features piece by piece."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import soundfile
import torch
from lhotse.augmentation.resample import Resample as SincFilter
from numpy.typing import NDArray
from torch import Tensor

from asr.data.features import LogMel
from asr.data.manifests.audio import open_recording, quiet_decoder
from werdict.errors import ConfigError, RunFailed

Samples = NDArray[Any] | Tensor
Audio = str | os.PathLike[str] | Samples | BinaryIO


def mono_samples(samples: Samples) -> NDArray[np.float32]:
    """Return samples (N,) float32 of the first channel.

    Args:
        samples: (N,), or (C, N) or (N, C) with more samples than channels; floating-point numbers in [-1, 1], or
            integers of 16 or 32 bits.

    Raises:
        ValueError: their shape or type is another.
    """
    if isinstance(samples, Tensor):
        samples = samples.detach().cpu()
        samples = (samples.float() if samples.is_floating_point() else samples).numpy()
    array = np.asarray(samples)
    if array.ndim not in (1, 2) or not (array.dtype.kind == "f" or array.dtype in (np.int16, np.int32)):
        raise ValueError(
            "samples must be (N,), (channels, N) or (N, channels), of floating-point numbers in [-1, 1], int16 or "
            f"int32, given {array.dtype} {array.shape}"
        )
    mono = array if array.ndim == 1 else array[0] if array.shape[0] <= array.shape[1] else array[:, 0]
    scale = 1 if array.dtype.kind == "f" else 2 ** (8 * array.itemsize - 1)
    return np.ascontiguousarray(mono if scale == 1 else mono / scale, dtype=np.float32)


def as_list(audio: Audio | Iterable[Audio]) -> list[Audio]:
    """Return recordings, if there is one, too."""
    is_one = isinstance(audio, str | os.PathLike | np.ndarray | Tensor) or hasattr(audio, "read")
    return [cast(Audio, audio)] if is_one else list(cast(Iterable[Audio], audio))


def as_file(audio: Audio, rate_hz: int | None, temporary: Path) -> Path:
    """Return a file with a recording: its own, or a new one.

    Args:
        audio: a path, samples, or a file that was opened to read bytes.
        rate_hz: of samples.
        temporary: name of a new file, without its ending.

    Raises:
        ValueError: it is something else, or samples without a rate.
    """
    if isinstance(audio, str | os.PathLike):
        return Path(audio)
    if isinstance(audio, np.ndarray | Tensor):
        if rate_hz is None:
            raise ValueError("rate_hz must be given for samples: rate_hz=16_000")
        path = temporary.with_suffix(".wav")
        soundfile.write(path, mono_samples(audio), rate_hz, subtype="FLOAT")
        return path
    data = audio.read() if hasattr(audio, "read") else None
    if not isinstance(data, bytes):
        raise ValueError(f"audio must be a path, an array, a tensor or a file opened with 'rb', given {audio!r:.100}")
    # of media files, whose endings tell how they are read
    path = temporary.with_suffix(Path(str(getattr(audio, "name", ""))).suffix)
    path.write_bytes(data)
    return path


BYTES = 2  # of a sample on standard input


def open_stream(path: Path) -> soundfile.SoundFile:
    """Open an audio file, all of which can be read.

    Raises:
        ConfigError: it cannot.
    """
    if not path.is_file():
        raise ConfigError(f"audio: {str(path)!r} is not a file; give one, or - for samples on standard input")
    try:
        file = soundfile.SoundFile(path)
    except soundfile.LibsndfileError as error:
        raise ConfigError(f"audio: {path} cannot be read: {error.error_string}") from None
    _, problem = open_recording(path, str(path))
    # half a file would be taken for the whole; an empty one ends well
    if problem and file.frames:
        raise ConfigError(f"audio: {problem}")
    return file


def packets_of_file(file: soundfile.SoundFile, size: int, at_own_pace: bool) -> Iterator[NDArray[np.float32]]:
    """Yield samples of the first channel, (N,) float32.

    Args:
        file: opened; it is read to its end.
        size: samples of a packet.
        at_own_pace: wait, so that a second of audio takes a second.

    Raises:
        RunFailed: the rest cannot be read.
    """
    begin, heard_s = time.monotonic(), 0.0
    try:
        blocks = file.blocks(size, dtype="float32", always_2d=True)
        while True:
            with quiet_decoder(file.name):
                block = next(blocks, None)
            if block is None:
                return
            heard_s += len(block) / file.samplerate
            if at_own_pace:
                time.sleep(max(0.0, begin + heard_s - time.monotonic()))
            yield block[:, 0]
    except soundfile.LibsndfileError as error:
        raise RunFailed(
            f"audio: {file.name} could not be read after {heard_s:.1f} s: {error.error_string}; its text ends there"
        ) from None


def packets_of_standard_input(size: int) -> Iterator[NDArray[np.float32]]:
    """Yield 16-bit samples as they come, (N,) float32; half a sample at the end is left out."""
    buffer = data = os.read(sys.stdin.fileno(), size * BYTES)
    while data:
        whole = len(buffer) // BYTES * BYTES
        yield np.frombuffer(buffer[:whole], dtype="<i2").astype(np.float32) * np.float32(2**-15)
        data = os.read(sys.stdin.fileno(), size * BYTES)
        buffer = buffer[whole:] + data


FloatSamples = NDArray[np.float32]


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
