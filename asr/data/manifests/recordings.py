"""Audio files → recordings, and the reasons why others cannot be used."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from lhotse import Recording

from asr.console import track
from asr.data.manifests.audio_checks import audio_problem, reading
from asr.data.parallel import run_jobs

ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\\/]")  # https://, s3://, C:\
CHUNK_FILES = 500  # a quarter of a second of reading headers


def existing_form(path: Path) -> Path:
    """Return a path in the form of Unicode in which a file exists, or as it is; macOS decomposes accents."""
    if os.path.isfile(path):  # Path.is_file raises an error on a name that is too long
        return path
    forms = (Path(unicodedata.normalize(form, str(path))) for form in ("NFC", "NFD"))
    return next(filter(os.path.isfile, forms), path)


def open_recording(audio: Path, recording_id: str) -> tuple[Recording | None, str]:
    """Return a recording whose header and end were read; or None, and why it cannot be used."""
    if not os.path.isfile(audio := existing_form(audio)):
        return None, f"missing audio: {audio}"
    try:
        with reading(str(audio)):
            # absolute, so that prepared cuts can be read from any folder; a link may lead to another file later
            recording = Recording.from_file(audio.parent.resolve() / audio.name, recording_id=recording_id)
    except ValueError as error:
        return None, f"unreadable audio: {error} WAV, FLAC, Ogg and MP3 are read, among others"
    problem = audio_problem(recording)
    return (None, problem) if problem else (recording, "")


def open_recordings(
    files: Sequence[tuple[Path, str]], description: str, num_jobs: int = 1
) -> Iterator[tuple[Recording | None, str]]:
    """Yield what `open_recording` returns of each file and id of its recording, in order, and show how far it is.

    Args:
        files: to open.
        description: of the progress.
        num_jobs: processes.
    """
    chunks = [files[start : start + CHUNK_FILES] for start in range(0, len(files), CHUNK_FILES)]
    opened = run_jobs(lambda chunk: [open_recording(*file) for file in chunk], chunks, min(num_jobs, len(chunks)))
    recordings = (recording for chunk in opened for recording in chunk)
    yield from track(recordings, description, total=len(files), transient=True)
