"""Looking at audio files before they are trained on, and refusing manifests that would do more than read files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import soundfile
from lhotse import Recording
from lhotse.audio import set_current_audio_backend

# lhotse's other readers start programs; for *.sph it is a shell, with the file's name in the command, so that a name
# could hold a command of its own. libsndfile reads in this process. The environment tells processes started later.
READER = "LibsndfileBackend"
os.environ["LHOTSE_AUDIO_BACKEND"] = READER
set_current_audio_backend(READER)

# programs that make manifests round differently, and lhotse fills in what is missing; more than a frame is a loss
TOLERATED_S = 0.01


def refuse_foreign_sources(recordings: Iterable[Recording]) -> None:
    """Refuse manifests whose audio is anything but a file: lhotse would run a command, or fetch an address.

    Raises:
        ValueError: names the recording, and what it wanted.
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
    """Find every audio source of a serialised recording, also those of impulse responses inside its transforms."""
    if isinstance(data, Mapping):
        yield from data.get("sources", ())
        for value in data.values():
            yield from _sources(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _sources(value)


def audio_problem(recording: Recording) -> str | None:
    """Return why a recording cannot be used, or None. What stands before a colon is the kind of reason."""
    refuse_foreign_sources([recording])
    for source in recording.sources:
        if problem := _file_problem(Path(source.source), len(source.channels), recording):
            return problem
    return None


def _file_problem(path: Path, num_channels: int, recording: Recording) -> str | None:
    # unlike Path.is_file, this takes an impossible name for a missing file
    if not os.path.isfile(path):
        return f"missing audio: {path}"
    if path.stat().st_size == 0:
        return f"empty audio: {path}"
    try:
        with soundfile.SoundFile(path) as file:
            return _content_problem(file, num_channels, recording)
    except Exception as error:  # a decoder may raise anything: for *.raw it is a TypeError
        return f"unreadable audio: {error}"


def _content_problem(file: soundfile.SoundFile, num_channels: int, recording: Recording) -> str | None:
    if file.frames == 0:
        return f"empty audio: {file.name}"
    if file.channels != num_channels:
        return f"unexpected channels: {file.channels}, the manifest has {num_channels}, in {file.name}"
    # a perturbed or resampled recording differs from its file
    if not recording.transforms:
        if file.samplerate != recording.sampling_rate:
            return f"unexpected rate: {file.samplerate} Hz, the manifest has {recording.sampling_rate}, in {file.name}"
        if file.frames < recording.num_samples - TOLERATED_S * file.samplerate:
            return f"truncated audio: {file.frames} of {recording.num_samples} samples in {file.name}"
    file.seek(file.frames - 1)
    if len(file.read(1)) == 0:
        return f"truncated audio: the last of {file.frames} samples cannot be read from {file.name}"
    return None
