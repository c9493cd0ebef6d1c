"""A cut's audio encoded for a shard: what training hears of it, and nothing more.

N samples.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import soundfile
from lhotse.cut import Cut, MonoCut

FORMATS = ("flac", "opus", "original")
OPUS_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)  # RFC 6716, section 2; libsndfile writes no others
BLOCK_SAMPLES = 48_000  # libsndfile 1.2.2 crashes where minutes of Ogg are written at once


def encoded(cut: Cut, samples: np.ndarray, audio: str) -> tuple[bytes, str]:
    """Return encoded audio, and the ending of a file of it.

    Args:
        cut: whose audio it is.
        samples: (N,) float32, as they are decoded.
        audio: ``flac`` keeps 16 and 24 bits as they are, and rounds what has no such samples to 16 bits; ``opus`` is
            lossy; ``original`` copies files that hold nothing but the cut, and is ``flac`` for others.
    """
    rate_hz = cut.sampling_rate
    if audio == "original" and (file := _own_file(cut)) is not None:
        return file.read_bytes(), file.suffix.lower() or ".audio"
    if audio == "opus":
        return _written(samples, rate_hz, "OGG", "OPUS"), ".opus"
    # a power of two changes no digit
    if _is_whole(of_16 := samples * np.float32(2**15), 2**15):
        return _written(of_16.astype(np.int16), rate_hz, "FLAC", "PCM_16"), ".flac"
    if _is_whole(of_24 := samples * np.float32(2**23), 2**23):
        return _written(of_24.astype(np.int32) << 8, rate_hz, "FLAC", "PCM_24"), ".flac"
    # libsndfile would scale by 2^15 - 1 and not by 2^15, as it does when it reads
    rounded = np.clip(np.rint(of_16), -(2**15), 2**15 - 1).astype(np.int16)
    return _written(rounded, rate_hz, "FLAC", "PCM_16"), ".flac"


def refuse_rate(cut: Cut, audio: str) -> None:
    """Refuse a rate that a format does not have.

    Raises:
        ValueError: names the cut and the rates.
    """
    if audio == "opus" and cut.sampling_rate not in OPUS_HZ:
        raise ValueError(
            f"data.storage.audio=opus stores {', '.join(map(str, OPUS_HZ))} Hz, and {cut.id} has {cut.sampling_rate} "
            "Hz; choose data.storage.audio=flac"
        )


def _own_file(cut: Cut) -> Path | None:
    """Return the file that holds the cut, its one channel, and nothing else; None if there is none."""
    recording = cut.recording
    is_whole = isinstance(cut, MonoCut) and cut.start == 0 and cut.duration == recording.duration
    is_plain = len(recording.sources) == 1 and recording.num_channels == 1 and not recording.transforms
    path = Path(recording.sources[0].source)
    return path if is_whole and is_plain and path.is_file() else None


def _is_whole(scaled: np.ndarray, bound: int) -> bool:
    inside = len(scaled) == 0 or (scaled.min() >= -bound and scaled.max() < bound)
    return bool(inside and np.array_equal(scaled, np.rint(scaled)))


def _written(samples: np.ndarray, rate_hz: int, container: str, subtype: str) -> bytes:
    content = io.BytesIO()
    with soundfile.SoundFile(content, "w", rate_hz, 1, subtype, format=container) as file:
        for start in range(0, len(samples), BLOCK_SAMPLES):
            file.write(samples[start : start + BLOCK_SAMPLES])
    return content.getvalue()
