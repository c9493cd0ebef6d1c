"""Checks audio before it is trained on, and refuses manifests that would do more than read files."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import soundfile
from lhotse import Recording
from lhotse.audio import set_current_audio_backend
from lhotse.cut import Cut

from asr.data.manifests.decoding_limits import before_transforms, impulse_responses, rate_problem
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


def refuse_foreign_sources(recordings: Iterable[Recording]) -> None:
    """Refuse manifests whose audio is anything but a file: lhotse would run a command, or open an address.

    Raises:
        ValueError: names the recording and its source.
    """
    for recording in recordings:
        # copying a recording to plain data takes longer than opening its file
        direct = [(source.type, source.source) for source in recording.sources]
        for kind, where in direct if not recording.transforms else _sources(recording.to_dict()):
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


def _sources(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield type and place of every audio source of a serialized recording, also of impulse responses in transforms."""
    if isinstance(data, Mapping):
        yield from ((source.get("type"), source.get("source")) for source in data.get("sources", ()))
        for value in data.values():
            yield from _sources(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _sources(value)


def audio_problem(recording: Recording) -> str | None:
    """Return why a recording cannot be used, or None; what precedes a colon is the kind of reason."""
    refuse_foreign_sources([recording])
    return _problem(recording, read_end=True)


def remember_content(cut: Cut) -> None:
    """Store in a cut what its audio files hold, so that a change is noticed without decoding them."""
    for source in cut.recording.sources:
        if member := ShardMember.find(source.source):
            source.source = str(member.checked())
    cut.custom = {**(cut.custom or {}), **_content(cut.recording)}


def refuse_changed_cut(cut: Cut) -> None:
    """Refuse audio that has changed since its cut was prepared; reads no more than its header and 4 kB.

    Raises:
        ValueError: it is missing, no regular file, does not fit its manifest, or is not what it was.
        UnusableShard: it is in a shard that is missing or has changed.
    """
    problem = _problem(cut.recording, read_end=False)
    if problem is None:
        found, known = _content(cut.recording), cut.custom or {}
        if changed := [key for key in found if key in known and known[key] != found[key]]:
            now = f"{found[BYTES]} bytes, not {known[BYTES]}" if BYTES in changed else "other bytes in its middle"
            # a broken file is called that
            problem = audio_problem(cut.recording) or f"changed audio: {cut.recording.sources[0].source} has {now}"
    if problem:
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


def _problem(recording: Recording, read_end: bool) -> str | None:
    for one in (recording, *impulse_responses(recording)):
        for source in one.sources:
            member = ShardMember.find(source.source)
            if member is not None and member.crc32 is not None and not read_end:
                member.read()  # the same bytes as when its header was checked
                continue
            content = AudioContent(str(source.source), None if member is None else member.read())
            problem = _file_problem(Path(source.source)) if member is None else None
            if problem := problem or _content_problem(content, len(source.channels), one, read_end):
                return problem
    return None


def archive_problem(path: Path) -> str | None:
    """Return why lhotse (1.33) cannot read audio: it looks for files of such a folder in an archive of its name."""
    folder = _archive_in(path.parent)
    return (
        f"unreadable audio: {path}: {str(folder)!r} is taken for a tar archive; rename this folder" if folder else None
    )


@lru_cache  # most files share a few folders
def _archive_in(path: Path) -> Path | None:
    return next((folder for folder in (path, *path.parents) if folder.name.endswith(".tar")), None)


def _file_problem(path: Path) -> str | None:
    if problem := archive_problem(path):
        return problem
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # also a name that is too long, or holds NUL
        return f"missing audio: {path}"
    if not stat.S_ISREG(status.st_mode):
        return f"unreadable audio: {path} is not a regular file"
    return f"empty audio: {path}" if status.st_size == 0 else None


def _content_problem(content: AudioContent, num_channels: int, recording: Recording, read_end: bool) -> str | None:
    try:
        with content.sound() as file:
            problem = _header_problem(file, content, num_channels, recording)
            return problem or (end_problem(file, content) if read_end else None)
    except Exception as error:  # a decoder may raise anything: for *.raw it is a TypeError
        raise_if_out_of_resources(error, content.name)
        return f"unreadable audio: {error}"


def _header_problem(
    file: soundfile.SoundFile, content: AudioContent, num_channels: int, recording: Recording
) -> str | None:
    if file.frames == 0:
        return f"empty audio: {content.name}"
    if file.channels != num_channels:
        return f"unexpected channels: {file.channels}, the manifest has {num_channels}, in {content.name}"
    if problem := header_problem(file, content):
        return problem
    rate_hz, duration_s = before_transforms(recording)
    if file.samplerate != rate_hz:
        return f"unexpected rate: {file.samplerate} Hz, the manifest has {rate_hz}, in {content.name}"
    num_samples = round(duration_s * rate_hz)
    if file.frames < num_samples - TOLERATED_S * file.samplerate:
        return f"truncated audio: {file.frames} of {num_samples} samples in {content.name}"
    # lhotse decodes the whole file for a cut of the whole recording, however long the manifest says that it is
    if file.frames > 2 * num_samples:
        return f"unexpected length: {file.frames} samples, the manifest has {num_samples}, in {content.name}"
    problem = rate_problem(file.samplerate)
    return f"{problem}, in {content.name}" if problem else None
