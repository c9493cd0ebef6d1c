"""Audio files → recordings, and the reasons why others cannot be used.

Audio is checked before: of a file that was cut short libsndfile reads what is there, mostly silently.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
from lhotse import Recording
from lhotse.audio import get_audio_duration_mismatch_tolerance, set_current_audio_backend
from lhotse.utils import fastcopy

from asr.console import track
from asr.data.manifests.shar.members import FilesAndShards, ShardMember
from asr.data.parallel import run_jobs
from asr.data.quiet_decoder import quiet_decoder
from asr.errors import raise_if_out_of_resources, text_of

# lhotse 1.33 tries several backends; some start programs, for *.sph a shell with the file name in its command, so
# that a name could be a command. libsndfile reads in this process. The environment tells processes started later.
READER = "LibsndfileBackend"
os.environ["LHOTSE_AUDIO_BACKEND"] = READER
set_current_audio_backend(FilesAndShards())

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
        data = None if member is None else member.read()

        def encoded(place: str = place, data: bytes | None = data) -> BinaryIO:
            return open(place, "rb") if data is None else io.BytesIO(data)

        try:
            opened = place if data is None else io.BytesIO(data)
            with reading(place), quiet_decoder(opened), soundfile.SoundFile(opened) as file:
                problem = next(_problems(file, encoded, len(source.channels), recording, whole), None)
        except ValueError as error:
            return f"unreadable audio: {error}"
        if problem:
            return f"{problem}, in {place}"
    return None


def audible_channel(recording: Recording, channels: Sequence[int], start_s: float, duration_s: float) -> int | None:
    """Return the first of some channels that is not silent between two times of a recording; None: all are silent.

    Raises:
        ValueError: it cannot be read.
    """
    audible: set[int] = set()
    for source in recording.sources:
        member = ShardMember.find(str(source.source))
        opened = str(source.source) if member is None else io.BytesIO(member.read())
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


def _problems(
    file: soundfile.SoundFile, encoded: Callable[[], BinaryIO], num_channels: int, recording: Recording, whole: bool
) -> Iterator[str]:
    """Yield what the header of a file says against its manifest, or of a part that is missing, and what its end says.

    Args:
        file: to check.
        encoded: opens it as it is, undecoded.
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
        with encoded() as opened:
            count = SAMPLE_COUNT.search(opened.read(SPHERE_HEADER_BYTES))
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
    if file.subtype in ("FLOAT", "DOUBLE") and (peak := _peak(file)) > MAX_PEAK:
        yield f"unscaled audio: samples up to {peak:.3g} times full scale; divide them, as by 32768, to be within ±1"
    if not file.seekable():
        yield f"unreadable audio: {file.subtype} cannot be read in parts; convert it to WAV or FLAC"
    if file.format == "OGG":
        with encoded() as opened:
            yield from _ogg_end_problem(opened)
    file.seek(file.frames - 1)
    if len(file.read(1)) == 0:
        yield f"truncated audio: the last of {file.frames} samples cannot be read"


def _peak(file: soundfile.SoundFile) -> float:
    """Return the largest size of a sample; floats have no limit."""
    file.seek(0)
    return max((float(np.abs(block).max()) for block in file.blocks(BLOCK_FRAMES) if block.size), default=0.0)


def _ogg_end_problem(opened: BinaryIO) -> Iterator[str]:
    """Yield what the last page of an Ogg file says of a part that is missing: its length is in no header."""
    opened.seek(max(0, opened.seek(0, 2) - MAX_OGG_PAGE_BYTES))
    end = opened.read()
    page = end[end.rfind(OGG_MARK) :]
    num_segments = page[OGG_HEADER_BYTES - 1] if len(page) >= OGG_HEADER_BYTES else 256
    sizes = page[OGG_HEADER_BYTES : OGG_HEADER_BYTES + num_segments]
    if len(sizes) < num_segments or len(page) < OGG_HEADER_BYTES + num_segments + sum(sizes):
        yield "truncated audio: it ends within a page of Ogg"
    elif not page[OGG_FLAGS] & OGG_IS_LAST:
        yield (
            "truncated audio: no page of Ogg is marked as the last; if it is whole, rewrite it (ffmpeg -i … -c copy …)"
        )


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
