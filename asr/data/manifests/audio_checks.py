"""Checks audio before it is trained on."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import soundfile
from lhotse import Recording
from lhotse.audio import set_current_audio_backend

from asr.data.manifests.shar.members import FilesAndShards, ShardMember
from asr.data.manifests.truncated_audio import TOLERATED_S, AudioContent, end_problem, header_problem
from asr.errors import raise_if_out_of_resources

# lhotse 1.33 tries several backends; some start programs, for *.sph a shell with the file name in its command, so
# that a name could be a command. libsndfile reads in this process. The environment tells processes started later.
READER = "LibsndfileBackend"
os.environ["LHOTSE_AUDIO_BACKEND"] = READER
set_current_audio_backend(FilesAndShards())

MIDDLE_BYTES = 4096


def audio_problem(recording: Recording) -> str | None:
    """Return why a recording cannot be used, or None; what precedes a colon is the kind of reason."""
    for source in recording.sources:
        place = str(source.source)
        member = ShardMember.find(place)
        # also a name that is too long, or holds NUL
        if member is None and not os.path.isfile(place):
            return f"missing audio: {place}"
        if member is None and os.path.getsize(place) == 0:
            return f"empty audio: {place}"
        content = AudioContent(place, None if member is None else member.read())
        try:
            with content.sound() as file:
                if problem := _header_problem(file, content, len(source.channels), recording):
                    return problem
                if problem := end_problem(file, content):
                    return problem
        except Exception as error:  # a decoder may raise anything: for *.raw it is a TypeError
            raise_if_out_of_resources(error, place)
            return f"unreadable audio: {error}"
    return None


def file_content(path: Path, crc32: int = 0) -> tuple[int, int]:
    """Return the size of a file and the checksum of what is in its middle, continued from that of another file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - MIDDLE_BYTES) // 2)
        return size, zlib.crc32(file.read(MIDDLE_BYTES), crc32)


def _header_problem(
    file: soundfile.SoundFile, content: AudioContent, num_channels: int, recording: Recording
) -> str | None:
    if file.frames == 0:
        return f"empty audio: {content.name}"
    if file.channels != num_channels:
        return f"unexpected channels: {file.channels}, the manifest has {num_channels}, in {content.name}"
    if problem := header_problem(file, content):
        return problem
    if recording.transforms:  # the manifest has the rate and the length after them
        return None
    if file.samplerate != recording.sampling_rate:
        return f"unexpected rate: {file.samplerate} Hz, the manifest has {recording.sampling_rate}, in {content.name}"
    if file.frames < recording.num_samples - TOLERATED_S * file.samplerate:
        return f"truncated audio: {file.frames} of {recording.num_samples} samples in {content.name}"
    return None
