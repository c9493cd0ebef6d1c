"""Audio of media files that libsndfile does not read, such as m4a, mp4 and webm: PyAV decodes it to FLAC."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import soundfile

from asr.data.manifests.audio_checks import reading

# FFmpeg's format by the ending: what it finds out by itself may be a playlist, which names other files and addresses
FFMPEG_FORMATS = {
    **dict.fromkeys((".3gp", ".m4a", ".m4b", ".mov", ".mp4"), "mov"),
    **dict.fromkeys((".mka", ".mkv", ".webm"), "matroska"),
}
MEDIA_ENDINGS = tuple(FFMPEG_FORMATS)
TOLERATED_S = 0.5  # between the length that a header states, with what encoders add, and that of the audio


def is_media(path: Path) -> bool:
    """Return whether the name of a file says that PyAV is needed."""
    return path.suffix.lower() in FFMPEG_FORMATS


def media_duration_s(path: Path) -> float:
    """Return the length that the header of a media file states, in seconds; 0 if it cannot be read."""
    try:
        with reading(str(path)), _open(path) as media:
            return (media.duration or 0) / 1e6
    except ValueError:  # said when it is decoded
        return 0.0


def write_flac(path: Path, target: Path) -> None:
    """Write the first audio stream of a media file, with its rate and channels, as FLAC of 16 bits.

    Raises:
        ValueError: PyAV is not installed; or the file has no audio, cannot be decoded, or was cut short.
    """
    try:
        import av
    except ImportError:
        needed = "PyAV: python3 scripts/setup.py media; or convert it to WAV or FLAC"
        raise ValueError(f"{path.suffix} needs {needed}") from None
    with reading(str(path)), _open(path) as media:
        audio = media.streams.audio[0] if media.streams.audio else None
        if audio is not None:
            stated_s = _stated_s(media, audio)
            to_16_bits = av.AudioResampler(format="s16", layout=audio.layout, rate=audio.rate)
            with soundfile.SoundFile(target, "w", audio.rate, audio.layout.nb_channels, "PCM_16") as flac:
                for frame in chain(media.decode(audio), [None]):  # None: what the resampler still holds
                    for part in to_16_bits.resample(frame):
                        flac.write(part.to_ndarray().reshape(-1, flac.channels))
                duration_s = flac.frames / flac.samplerate
    if audio is None:
        raise ValueError("it has no audio stream")
    if stated_s - duration_s > TOLERATED_S:
        raise ValueError(f"truncated audio: its header states {stated_s:.1f} s, {duration_s:.1f} s are there")


def _open(path: Path) -> Any:
    import av

    return av.open(
        str(path.resolve()), format=FFMPEG_FORMATS[path.suffix.lower()], options={"protocol_whitelist": "file"}
    )


def _stated_s(media: Any, audio: Any) -> float:
    """Return the length of an audio stream by the header; 0 if it does not state it."""
    if audio.duration:
        return float(audio.duration * audio.time_base)
    # other streams may be longer
    return (media.duration or 0) / 1e6 if len(media.streams) == 1 else 0.0
