"""Looking at audio files before they are trained on, and refusing manifests that would do more than read files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import soundfile
from lhotse import Recording


def refuse_foreign_sources(recordings: Iterable[Recording]) -> None:
    """Refuse manifests whose audio is anything but a file: lhotse would run a command, or fetch an address.

    Raises:
        ValueError: names the recording, and what it wanted.
    """
    for recording in recordings:
        for source in recording.sources:
            if source.type != "file" or not isinstance(source.source, str | Path):
                kind, what = source.type, "its content"
            elif str(source.source).rstrip().endswith("|") or str(source.source).lstrip().startswith("|"):
                kind, what = "pipe", "a file"
            else:
                continue
            raise ValueError(
                f"recording {recording.id!r}: audio of type {kind!r} ({str(source.source)[:80]!r}) is refused, because "
                f"reading it could run a command or fetch something; only files are read, type 'file'. Save {what} to "
                "a file and name that file."
            )


def audio_problem(recording: Recording) -> str | None:
    """Return why a recording cannot be used, or None. What stands before a colon is the kind of reason."""
    refuse_foreign_sources([recording])
    for source in recording.sources:
        if problem := _file_problem(Path(source.source), recording):
            return problem
    return None


def _file_problem(path: Path, recording: Recording) -> str | None:
    if not path.is_file():
        return f"missing audio: {path}"
    if path.stat().st_size == 0:
        return f"empty audio: {path}"
    try:
        with soundfile.SoundFile(path) as file:
            if file.frames == 0:
                return f"empty audio: {path}"
            # a perturbed or resampled recording has another number of samples than its file
            if not recording.transforms and file.frames < recording.num_samples:
                return f"truncated audio: {file.frames} of {recording.num_samples} samples in {path}"
            file.seek(file.frames - 1)
            if len(file.read(1)) == 0:
                return f"truncated audio: the last of {file.frames} samples cannot be read from {path}"
    except (soundfile.SoundFileError, OSError) as error:
        return f"unreadable audio: {error}"
    return None
