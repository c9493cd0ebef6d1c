"""Checks audio before it is trained on, and refuses manifests that would do more than read files."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import soundfile
from lhotse import Recording
from lhotse.audio import set_current_audio_backend
from lhotse.augmentation import Resample, Speed
from lhotse.cut import Cut

from asr.errors import refuse_lack_of_memory

# lhotse 1.33 tries several backends; some start programs, for *.sph a shell with the file name in its command, so
# that a name could be a command. libsndfile reads in this process. The environment tells processes started later.
READER = "LibsndfileBackend"
os.environ["LHOTSE_AUDIO_BACKEND"] = READER
set_current_audio_backend(READER)

# programs that write manifests round differently, and lhotse pads the difference; more than a frame is a loss
TOLERATED_S = 0.01
# telephone to ultrasound; another rate in a header would turn seconds into hours when resampled
RATES_HZ = (4_000, 768_000)
# a cut is decoded, resampled and encoded in one piece, and attention takes memory that grows with the square of it
MAX_DECODED_S = 900
MAX_DECODED_SAMPLES = MAX_DECODED_S * 48_000
MAX_CHANNELS = 1024  # of libsndfile
MAX_TRANSFORMS = 20
# taps of a resampling filter: the product of both rates without their common factors, 441 × 160 from 44.1 to 16 kHz,
# but 10^9 between two prime rates
MAX_FILTER = 2**20
# libsndfile's log of a chunk whose header claims more bytes than follow; programs that write to a pipe do not know the
# number, and claim one of the others
CLAIM = re.compile(r"^ *(?:data|SSND|Data Size) *: *(\d+) \(should be (\d+)\)", re.MULTILINE)
UNKNOWN_BYTES = (0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
BYTES = "audio_bytes"  # custom field of prepared cuts: the size of their audio files when they were checked


def refuse_foreign_sources(recordings: Iterable[Recording]) -> None:
    """Refuse manifests whose audio is anything but a file: lhotse would run a command, or open an address.

    Raises:
        ValueError: names the recording and its source.
    """
    for recording in recordings:
        for source in _sources(recording.to_dict()):
            kind, where = source.get("type"), source.get("source")
            if kind != "file" or not isinstance(where, str | Path):
                what = "its content"
            elif str(where).rstrip().endswith("|") or str(where).lstrip().startswith("|"):
                kind, what = "pipe", "a file"
            else:
                continue
            raise ValueError(
                f"recording {recording.id!r}: audio of type {kind!r} ({str(where)[:80]!r}) is refused, because "
                f"reading it could run a command or fetch something; only files are read, type 'file'. Save {what} to "
                "a file and name that file."
            )


def _sources(data: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every audio source of a serialized recording, also of impulse responses inside its transforms."""
    if isinstance(data, Mapping):
        yield from data.get("sources", ())
        for value in data.values():
            yield from _sources(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _sources(value)


def audio_problem(recording: Recording) -> str | None:
    """Return why a recording cannot be used, or None; what precedes a colon is the kind of reason."""
    refuse_foreign_sources([recording])
    for source in recording.sources:
        if problem := _file_problem(Path(source.source), len(source.channels), recording):
            return problem
    return None


def too_long(cut: Cut, target_rate_hz: int = 0) -> str | None:
    """Return why decoding and resampling a cut would take too much memory, or None.

    Args:
        cut: a part of a recording.
        target_rate_hz: rate to resample to; 0 for none.
    """
    if not cut.duration <= MAX_DECODED_S:
        return f"longer than {MAX_DECODED_S} s; cut it into parts"
    # lhotse reads all channels of a file together
    num_channels = max((len(source.channels) for source in cut.recording.sources), default=0)
    try:
        steps = list(_resampling(cut.recording, target_rate_hz))
    except (TypeError, ValueError, OverflowError) as error:  # a manifest may hold a speed of 1e308
        return f"impossible transforms: {error}"
    if num_channels * cut.duration * max(cut.recording.sampling_rate, *map(max, steps), 0) > MAX_DECODED_SAMPLES:
        return f"more than {MAX_DECODED_SAMPLES} samples in all channels; cut it into parts"
    return _transform_problem(cut.recording, steps)


def _resampling(recording: Recording, target_rate_hz: int) -> Iterator[tuple[int, int]]:
    """Yield source and target rates of each resampling when a recording is read."""
    for transform in recording.transforms or ():
        if isinstance(transform, Resample):
            yield transform.source_sampling_rate, transform.target_sampling_rate
        elif isinstance(transform, Speed):
            yield round(recording.sampling_rate * transform.factor), recording.sampling_rate
    if target_rate_hz:
        yield recording.sampling_rate, target_rate_hz


def _transform_problem(recording: Recording, steps: Iterable[tuple[int, int]]) -> str | None:
    if len(recording.transforms or ()) > MAX_TRANSFORMS:
        return f"impossible transforms: {len(recording.transforms)}, allowed are {MAX_TRANSFORMS}"
    for source_hz, target_hz in steps:
        if not all(0 < rate <= RATES_HZ[1] for rate in (source_hz, target_hz)):
            return f"impossible rate: resampling from {source_hz} to {target_hz} Hz, allowed are 1 to {RATES_HZ[1]}"
        if source_hz * target_hz // math.gcd(source_hz, target_hz) ** 2 > MAX_FILTER:
            return (
                f"impossible rate: resampling from {source_hz} to {target_hz} Hz takes a filter of more than "
                f"{MAX_FILTER} numbers; save the audio at a usual rate"
            )
    return None


def remember_size(cut: Cut) -> None:
    """Store the size of a cut's audio files in it, so that a change is noticed without opening them."""
    cut.custom = {**(cut.custom or {}), BYTES: sum(os.stat(source.source).st_size for source in cut.recording.sources)}


def refuse_changed(cut: Cut) -> None:
    """Refuse audio that has changed since its cut was prepared; takes microseconds if nothing has.

    Raises:
        ValueError: it is missing, no regular file, or has another size and does not fit its manifest.
    """
    size = 0
    for source in cut.recording.sources:
        try:
            status = os.stat(source.source)
        except (OSError, ValueError):
            raise ValueError(f"missing audio: {source.source}") from None
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"unreadable audio: {source.source} is not a regular file")
        size += status.st_size
    if size != (cut.custom or {}).get(BYTES, size) and (problem := audio_problem(cut.recording)):
        raise ValueError(f"{problem} (changed since it was prepared)")


def _file_problem(path: Path, num_channels: int, recording: Recording) -> str | None:
    # Path.is_file raises an error on a name that is too long
    if not os.path.isfile(path):
        return f"missing audio: {path}"
    if path.stat().st_size == 0:
        return f"empty audio: {path}"
    try:
        with soundfile.SoundFile(path) as file:
            return _content_problem(file, num_channels, recording)
    except Exception as error:  # a decoder may raise anything: for *.raw it is a TypeError
        refuse_lack_of_memory(error, str(path))
        return f"unreadable audio: {error}"


def _content_problem(file: soundfile.SoundFile, num_channels: int, recording: Recording) -> str | None:
    if file.frames == 0:
        return f"empty audio: {file.name}"
    if file.channels != num_channels:
        return f"unexpected channels: {file.channels}, the manifest has {num_channels}, in {file.name}"
    if claim := CLAIM.search(file.extra_info):
        claimed, there = int(claim[1]), int(claim[2])
        if claimed not in UNKNOWN_BYTES and claimed - there > TOLERATED_S * file.samplerate:
            return f"truncated audio: its header claims {claimed} bytes, {there} are there, in {file.name}"
    # a recording with transforms has another rate and length than its file
    if not recording.transforms:
        if file.samplerate != recording.sampling_rate:
            return f"unexpected rate: {file.samplerate} Hz, the manifest has {recording.sampling_rate}, in {file.name}"
        if file.frames < recording.num_samples - TOLERATED_S * file.samplerate:
            return f"truncated audio: {file.frames} of {recording.num_samples} samples in {file.name}"
    if not RATES_HZ[0] <= file.samplerate <= RATES_HZ[1]:
        return f"impossible rate: {file.samplerate} Hz, allowed are {RATES_HZ[0]} to {RATES_HZ[1]}, in {file.name}"
    file.seek(file.frames - 1)
    if len(file.read(1)) == 0:
        return f"truncated audio: the last of {file.frames} samples cannot be read from {file.name}"
    return None
