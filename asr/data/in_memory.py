"""Recordings in memory: arrays, tensors and open files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import soundfile
from numpy.typing import NDArray
from torch import Tensor

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
