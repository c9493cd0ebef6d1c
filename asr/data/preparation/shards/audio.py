"""A cut's audio encoded for a shard: what training hears of it, and nothing more.

N samples.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from lhotse import AudioSource, Recording
from lhotse.cut import Cut, MonoCut
from lhotse.utils import fastcopy

from asr.data.manifests.audio_checks import BYTES
from asr.data.manifests.shar.members import ShardMember
from asr.data.preparation.shards.fields import Encoded, ShardField, of_own_source

FORMATS = ("flac", "opus", "original")
OPUS_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)  # RFC 6716, section 2; libsndfile writes no others
BLOCK_SAMPLES = 48_000  # libsndfile 1.2.2 crashes where minutes of Ogg are written at once


@dataclass(frozen=True)
class AudioField(ShardField):
    """Stores the audio of cuts.

    Attributes:
        format: ``flac`` keeps 16 and 24 bits as they are, and rounds what has no such samples to 16 bits; ``opus`` is
            lossy; ``original`` copies files that hold nothing but the cut, and is ``flac`` for others.
    """

    format: str = "flac"
    name = "recording"
    source = "audio"

    @property
    def options(self) -> str:
        """Name of the format."""
        return self.format

    def refuse_unfit(self, cut: Cut) -> None:
        """Refuse a rate that the format does not have.

        Raises:
            ValueError: names the cut and the rates.
        """
        if self.format == "opus" and cut.sampling_rate not in OPUS_HZ:
            raise ValueError(
                f"data.storage.audio=opus stores {', '.join(map(str, OPUS_HZ))} Hz, and {cut.id} has "
                f"{cut.sampling_rate} Hz; choose data.storage.audio=flac"
            )

    def encode(self, cut: Cut) -> Encoded:
        """Return encoded audio of the cut's first channel."""
        samples = cut.load_audio()[0]
        return Encoded(*_encoded(cut, samples, self.format), (cut.sampling_rate, len(samples)))

    def in_shard(self, cut: Cut, size: tuple[int, int], member: ShardMember) -> Cut:
        """Return a cut whose audio is a member of a shard."""
        recording = _recording(cut, cut.id, size, AudioSource("file", [0], str(member)))
        return of_own_source(cut, cut.id, {BYTES: member.num_bytes}, recording=recording)

    def placeholder(self, cut: Cut, name: str, size: tuple[int, int]) -> MonoCut:
        """Return the cut with audio that its shard holds."""
        recording = _recording(cut, name, size, AudioSource("shar", [0], ""))
        return fastcopy(of_own_source(cut, name, recording=recording), id=name)


def _recording(cut: Cut, recording_id: str, size: tuple[int, int], source: AudioSource) -> Recording:
    rate_hz, num_samples = size
    return Recording(recording_id, [source], rate_hz, num_samples, cut.duration, channel_ids=[0])


def _encoded(cut: Cut, samples: np.ndarray, audio: str) -> tuple[bytes, str]:
    """Return samples (N,) float32 of a cut as a file, and its ending."""
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
