"""Audio of a corpus: read from files, tar members and memory, and checked before it is used."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import sys
import threading
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from lhotse import Recording
from lhotse.audio import get_audio_duration_mismatch_tolerance, set_current_audio_backend
from lhotse.audio.backend import LibsndfileBackend
from lhotse.utils import fastcopy

from asr.data.parallel import run_jobs
from werdict.console import track
from werdict.errors import TOO_MANY_FILES, UnusableFile, raise_if_out_of_resources, text_of

_lock = threading.Lock()
_users, _standard_error = 0, -1
# as in Kaldi's tables, a place follows the path: byte, number of bytes, checksum
NAME = re.compile(r"(/.*\.tar):([0-9]{1,15})\+([0-9]{1,10})(?:#([0-9a-f]{8}))?", re.DOTALL)
MAX_OPEN = 16  # shards that a process keeps open
REMEDY = "restore the file as it was, then run the same command again; a run can be resumed"
MIDDLE_BYTES = 4096
# of samples as floats, where 1 is full scale: loud recordings may be a little above, 16-bit numbers are far above
MAX_PEAK, BLOCK_FRAMES = 32.0, 1 << 20
SILENT_PEAK, SILENCE_FRAMES = 2**-15, 4096  # one step of 16 bits; most audio is louder in its first frames
# programs that write manifests round differently, and lhotse pads the difference; more than a frame is a loss
TOLERATED_S = 0.01
# formats of which it shows, if not in the log, that a part is missing: HTK and CAF are not opened then, the last sample
# of FLAC and MP3 cannot be read
CHECKED_FORMATS = ("AIFF", "AU", "CAF", "FLAC", "HTK", "MP3", "NIST", "OGG", "RF64", "W64", "WAV", "WAVEX")
# libsndfile's log of a chunk whose header claims more bytes than follow (in RF64 and W64, of the one that holds all)
CLAIM = re.compile(r"^ *(?:data|SSND|Data Size|Riff size|riff) *: *(\d+) \(should be (\d+)\)", re.MULTILINE)
UNKNOWN_BYTES = (0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)  # claimed by programs that write to a pipe
UNKNOWN_FRAMES = 2**63 - 1  # libsndfile's number for FLAC whose header states none
# of NIST SPHERE, whose header libsndfile does not log
SAMPLE_COUNT = re.compile(rb"^sample_count -i (\d{1,15})\s*$", re.MULTILINE)
SPHERE_HEADER_BYTES = 1024
# of Ogg: RFC 3533, section 6; the last byte of a page's header is the number of its segments, whose sizes follow
OGG_MARK, OGG_HEADER_BYTES, MAX_OGG_PAGE_BYTES = b"OggS\0", 27, 65_307
OGG_FLAGS, OGG_IS_LAST = 5, 4  # place in the header, and the flag of the last page of a stream
ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\\/]")  # https://, s3://, C:\
OPENED: dict[str, Recording] = {}  # by path, those of unchanged files that were opened before
CHUNK_FILES = 500  # a quarter of a second of reading headers


@contextlib.contextmanager
def quiet_decoder(audio: object) -> Iterator[None]:
    """Send standard error nowhere, also that of libraries, while any thread reads MP3.

    Args:
        audio: what is read: the path of a file, or anything else that may hold MP3.
    """
    global _users, _standard_error
    is_other = isinstance(audio, str | os.PathLike) and not os.fspath(audio).lower().endswith(".mp3")
    if is_other or sys.__stderr__ is None:  # where it was closed, its number may be another file's
        yield
        return
    with _lock:
        if not _users:
            _standard_error = os.dup(2)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                os.dup2(_standard_error, 2)
                os.close(_standard_error)


@dataclass(frozen=True)
class ShardMember:
    """The place of encoded audio, or of an array, in an uncompressed tar.

    Attributes:
        tar: absolute path.
        offset: of its first byte.
        num_bytes: how many there are.
        crc32: of these bytes; None before they were read for the first time.
    """

    tar: str
    offset: int
    num_bytes: int
    crc32: int | None = None

    @classmethod
    def find(cls, source: object) -> ShardMember | None:
        """Return the member that a source names; None if it names a whole file."""
        match = NAME.fullmatch(source) if isinstance(source, str) else None
        if match is None:
            return None
        tar, offset, num_bytes, crc32 = match.groups()
        return cls(tar, int(offset), int(num_bytes), None if crc32 is None else int(crc32, 16))

    def __str__(self) -> str:
        checksum = "" if self.crc32 is None else f"#{self.crc32:08x}"
        return f"{self.tar}:{self.offset}+{self.num_bytes}{checksum}"

    def checked(self) -> ShardMember:
        """Return the member with the checksum of what it holds now.

        Raises:
            UnusableFile: it cannot be read.
        """
        return self if self.crc32 is not None else replace(self, crc32=zlib.crc32(self.read()))

    def read(self) -> bytes:
        """Return its content.

        Raises:
            UnusableFile: the shard is missing, or has other bytes in this place.
            OSError: too many files are open.
        """
        return _read(self)


@functools.lru_cache(maxsize=1)  # what was checked is decoded next
def _read(member: ShardMember) -> bytes:
    content = b""
    try:
        tar = _opened(member.tar)
        # one call reads at most 2 GB, and less from some network disks
        while more := os.pread(tar.fileno(), member.num_bytes - len(content), member.offset + len(content)):
            content += more
    except OSError as error:
        if error.errno in TOO_MANY_FILES:
            raise
        raise UnusableFile(f"the shard {member.tar} cannot be read: {error.strerror}; {REMEDY}") from error
    if len(content) != member.num_bytes:
        raise UnusableFile(
            f"the shard {member.tar} was cut short: it ends before byte {member.offset + member.num_bytes}; {REMEDY}"
        )
    if member.crc32 not in (None, zlib.crc32(content)):
        raise UnusableFile(
            f"the shard {member.tar} has changed since the data were prepared: the checksum of the member at byte "
            f"{member.offset} differs; {REMEDY}"
        )
    return content


@functools.lru_cache(maxsize=MAX_OPEN)  # opening one takes a round trip on a network disk
def _opened(path: str) -> io.FileIO:
    """Return an open shard, read without its position, so that processes may share it; closed when nothing uses it."""
    return open(path, "rb", buffering=0)


def forget() -> None:
    """Close all shards, because one will be written again."""
    _opened.cache_clear()
    _read.cache_clear()


def decodable(source: Any) -> Any:
    """Return what a decoder takes for the source of a recording: a file in memory for a member of a shard."""
    member = ShardMember.find(source)
    return source if member is None else io.BytesIO(member.read())


class FilesAndShards(LibsndfileBackend):
    """lhotse's reader of audio by libsndfile, also of members of shards."""

    def read_audio(self, path_or_fd: object, *args: Any, **kwargs: Any) -> tuple[np.ndarray, int]:
        """Return samples (channels, N) float32, and their rate in Hz."""
        source = decodable(path_or_fd)
        with quiet_decoder(source):
            samples: tuple[np.ndarray, int] = super().read_audio(source, *args, **kwargs)
        return samples


# lhotse 1.33 tries several backends; some start programs, for *.sph a shell with the file name in its command, so
# that a name could be a command. libsndfile reads in this process. The environment tells processes started later.
READER = "LibsndfileBackend"
os.environ["LHOTSE_AUDIO_BACKEND"] = READER
set_current_audio_backend(FilesAndShards())


@contextlib.contextmanager
def reading(place: str) -> Iterator[None]:
    """Turn whatever a decoder raises on a broken file into one kind of error; for ``*.raw`` it is a TypeError.

    Args:
        place: what is read.

    Raises:
        ValueError: it cannot be read.
        RunFailed: memory ran out, or too many files are open: it may be as good as others.
    """
    try:
        yield
    except Exception as error:
        raise_if_out_of_resources(error, place)
        raise ValueError(cause(error)) from error


def cause(error: BaseException) -> str:
    """Return the first error of a chain."""
    # lhotse wraps a decoder's error several times, and the outer messages do not repeat its text
    while inner := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = inner
    return f"{type(error).__name__}: {text_of(error)}"


def audio_problem(recording: Recording, whole: bool = False) -> str | None:
    """Return why a recording cannot be used, or None; what precedes a colon is the kind of reason.

    Args:
        recording: to check.
        whole: it is read from its start to its end, of which lhotse refuses more than the manifest says.
    """
    for source in recording.sources:
        place = str(source.source)
        member = ShardMember.find(place)
        # also a name that is too long, or holds NUL
        if member is None and not os.path.isfile(place):
            return f"missing audio: {place}"
        if member is None and os.path.getsize(place) == 0:
            return f"empty audio: {place}"
        opened = decodable(place)
        try:
            with reading(place), quiet_decoder(opened), soundfile.SoundFile(opened) as file:
                problem = next(_problems(file, place, len(source.channels), recording, whole), None)
        except ValueError as error:
            return f"unreadable audio: {error}"
        if problem:
            return f"{problem}, in {place}"
    return None


def _problems(
    file: soundfile.SoundFile, place: str, num_channels: int, recording: Recording, whole: bool
) -> Iterator[str]:
    """Yield what the header of a file says against its manifest, or of a part that is missing, and what its end says.

    Args:
        file: to check.
        place: of it.
        num_channels: that the manifest has.
        recording: which is described.
        whole: as of `audio_problem`.
    """
    rate_hz, tolerated = file.samplerate, TOLERATED_S * file.samplerate
    if file.frames == 0:
        yield "empty audio: no samples"
    if file.channels != num_channels:
        yield f"unexpected channels: {file.channels}, the manifest has {num_channels}"
    if file.frames == UNKNOWN_FRAMES:
        yield "unknown length: its header does not state it; rewrite it, with flac or ffmpeg"
    if file.format not in CHECKED_FORMATS:
        yield f"unknown length: that of {file.format} cannot be checked; convert it to WAV or FLAC"
    if claim := CLAIM.search(file.extra_info):
        claimed, actual = int(claim[1]), int(claim[2])
        if claimed not in UNKNOWN_BYTES and claimed - actual > tolerated:
            yield f"truncated audio: its header states {claimed} bytes, the file has {actual}"
    if file.format == "NIST":
        count = SAMPLE_COUNT.search(_encoded(place, 0, SPHERE_HEADER_BYTES))
        if count is None:
            yield "unknown length: its header has no sample_count; convert it to WAV or FLAC"
        elif int(count[1]) - file.frames > tolerated:
            yield f"truncated audio: its header states {int(count[1])} samples, the file has {file.frames}"
    if not recording.transforms:  # after them the manifest has another rate and length
        if rate_hz != recording.sampling_rate:
            yield f"unexpected rate: {rate_hz} Hz, the manifest has {recording.sampling_rate}"
        if file.frames < recording.num_samples - tolerated:
            yield f"truncated audio: {file.frames} of {recording.num_samples} samples"
        most = recording.num_samples + rate_hz * get_audio_duration_mismatch_tolerance()
        if whole and file.frames > most:
            yield f"longer audio: {file.frames} samples, the manifest has {recording.num_samples}"
    if file.subtype in ("FLOAT", "DOUBLE"):  # which have no limit
        file.seek(0)
        peak = max((float(np.abs(block).max()) for block in file.blocks(BLOCK_FRAMES) if block.size), default=0.0)
        if peak > MAX_PEAK:
            scale = f"samples up to {peak:.3g} times full scale"
            yield f"unscaled audio: {scale}; divide them, as by 32768, to be within ±1"
    if not file.seekable():
        yield f"unreadable audio: {file.subtype} cannot be read in parts; convert it to WAV or FLAC"
    if file.format == "OGG":
        yield from _ogg_end_problem(_encoded(place, -MAX_OGG_PAGE_BYTES, MAX_OGG_PAGE_BYTES))
    file.seek(file.frames - 1)
    if len(file.read(1)) == 0:
        yield f"truncated audio: the last of {file.frames} samples cannot be read"


def _encoded(place: str, start: int, num_bytes: int) -> bytes:
    """Return bytes of a file, or of a member of a shard, undecoded; a start below 0 counts from its end."""
    opened = decodable(place)
    with open(place, "rb") if opened is place else opened as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(start if start >= 0 else max(0, size + start))
        data: bytes = file.read(num_bytes)
        return data


def _ogg_end_problem(end: bytes) -> Iterator[str]:
    """Yield what the last page of an Ogg file says of a part that is missing: its length is in no header."""
    page = end[end.rfind(OGG_MARK) :]
    num_segments = page[OGG_HEADER_BYTES - 1] if len(page) >= OGG_HEADER_BYTES else 256
    sizes = page[OGG_HEADER_BYTES : OGG_HEADER_BYTES + num_segments]
    if len(sizes) < num_segments or len(page) < OGG_HEADER_BYTES + num_segments + sum(sizes):
        yield "truncated audio: it ends within a page of Ogg"
    elif not page[OGG_FLAGS] & OGG_IS_LAST:
        yield (
            "truncated audio: no page of Ogg is marked as the last; if it is whole, rewrite it (ffmpeg -i … -c copy …)"
        )


def audible_channel(recording: Recording, channels: Sequence[int], start_s: float, duration_s: float) -> int | None:
    """Return the first of some channels that is not silent between two times of a recording; None: all are silent.

    Raises:
        ValueError: it cannot be read.
    """
    audible: set[int] = set()
    for source in recording.sources:
        opened = decodable(str(source.source))
        with reading(str(source.source)), quiet_decoder(opened), soundfile.SoundFile(opened) as file:
            num_frames = -1  # of a transformed recording, whose times are others
            if not recording.transforms:
                num_frames = round(duration_s * file.samplerate)
                file.seek(min(round(start_s * file.samplerate), file.frames))
            for block in file.blocks(SILENCE_FRAMES, frames=num_frames, dtype="float32", always_2d=True):
                loud = ~(np.abs(block).max(axis=0, initial=0) <= SILENT_PEAK)  # NaN is no silence
                audible |= {channel for channel, is_loud in zip(source.channels, loud, strict=False) if is_loud}
                if channels[0] in audible:
                    return channels[0]
    return next((channel for channel in channels if channel in audible), None)


def file_content(path: Path) -> tuple[int, int]:
    """Return the size of a file and the checksum of what is in its middle.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - MIDDLE_BYTES) // 2)
        return size, zlib.crc32(file.read(MIDDLE_BYTES))


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
    # absolute, so that prepared cuts can be read from any folder; a link may lead to another file later
    path = audio.parent.resolve() / audio.name
    if opened := OPENED.get(str(path)):
        return fastcopy(opened, id=recording_id), ""
    try:
        with reading(str(audio)):
            recording = Recording.from_file(path, recording_id=recording_id)
    except ValueError as error:
        return None, f"unreadable audio: {error} WAV, FLAC, Ogg and MP3 are read, among others"
    problem = audio_problem(recording)
    return (None, problem) if problem else (recording, "")


def open_recordings(files: Sequence[tuple[Path, str]], num_jobs: int = 1) -> Iterator[tuple[Recording | None, str]]:
    """Yield what `open_recording` returns of each file and id of its recording, in order, and show how far it is.

    Args:
        files: to open.
        num_jobs: processes.
    """
    chunks = [files[start : start + CHUNK_FILES] for start in range(0, len(files), CHUNK_FILES)]
    opened = run_jobs(lambda chunk: [open_recording(*file) for file in chunk], chunks, min(num_jobs, len(chunks)))
    recordings = (recording for chunk in opened for recording in chunk)
    yield from track(recordings, "reading headers of audio", total=len(files), transient=True)
