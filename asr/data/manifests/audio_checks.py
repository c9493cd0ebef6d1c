"""Checks audio before it is trained on."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import soundfile
from lhotse import Recording
from lhotse.audio import set_current_audio_backend
from lhotse.cut import Cut

from asr.data.manifests.shar.members import FilesAndShards, ShardMember
from asr.data.manifests.truncated_audio import TOLERATED_S, AudioContent, end_problem, header_problem
from asr.errors import raise_if_out_of_resources

# lhotse 1.33 tries several backends; some start programs, for *.sph a shell with the file name in its command, so
# that a name could be a command. libsndfile reads in this process. The environment tells processes started later.
READER = "LibsndfileBackend"
os.environ["LHOTSE_AUDIO_BACKEND"] = READER
set_current_audio_backend(FilesAndShards())

# custom fields of prepared cuts, of their audio when it was checked: bytes of all files, and a checksum of what is in
# the middle of each, which tells files of one size apart
BYTES, MIDDLE = "audio_bytes", "audio_middle_crc32"
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


def remember_content(cut: Cut) -> None:
    """Store in a cut what its audio files hold, so that a change is noticed without decoding them."""
    for source in cut.recording.sources:
        if member := ShardMember.find(source.source):
            source.source = str(member.checked())
    cut.custom = {**(cut.custom or {}), **_content(cut.recording)}


def refuse_changed_cut(cut: Cut) -> None:
    """Refuse audio that has changed since its cut was prepared; reads 4 kB of a file.

    Raises:
        ValueError: it is missing, or is not what it was.
    """
    known = cut.custom or {}
    try:
        found = _content(cut.recording)
    except OSError as error:
        raise_if_out_of_resources(error, cut.id)
        raise ValueError(f"missing audio: {error} (changed since it was prepared)") from None
    if changed := [key for key in found if key in known and known[key] != found[key]]:
        now = f"{found[BYTES]} bytes, not {known[BYTES]}" if BYTES in changed else "other bytes in its middle"
        # a broken file is called that
        problem = audio_problem(cut.recording) or f"changed audio: {cut.recording.sources[0].source} has {now}"
        raise ValueError(f"{problem} (changed since it was prepared)")


def _content(recording: Recording) -> dict[str, int]:
    """Return size and checksum of the audio; parts of shards have a checksum of their own."""
    num_bytes = crc32 = 0
    for source in recording.sources:
        if member := ShardMember.find(source.source):
            num_bytes += member.num_bytes
        else:
            size, crc32 = file_content(Path(source.source), crc32)
            num_bytes += size
    return {BYTES: num_bytes, MIDDLE: crc32}


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
