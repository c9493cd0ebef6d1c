"""Finds audio files that were cut short: libsndfile reads as much as is there, in most formats silently."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import BinaryIO

import soundfile

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


@dataclass(frozen=True)
class AudioContent:
    """Encoded audio: a file, or a part of one that is in memory.

    Attributes:
        name: path of the file, or a name for messages.
        data: the bytes of a part; None: all of the file.
    """

    name: str
    data: bytes | None = None

    def sound(self) -> soundfile.SoundFile:
        """Open it to decode it."""
        return soundfile.SoundFile(self.name if self.data is None else io.BytesIO(self.data))

    def bytes(self) -> BinaryIO:
        """Open it as it is."""
        return open(self.name, "rb") if self.data is None else io.BytesIO(self.data)


def header_problem(file: soundfile.SoundFile, content: AudioContent) -> str | None:
    """Return what the header says of a part that is missing, or of a length that cannot be checked; None if whole."""
    if file.frames == UNKNOWN_FRAMES:
        return f"unknown length: its header does not state it; rewrite it, with flac or ffmpeg: {content.name}"
    if file.format not in CHECKED_FORMATS:
        return f"unknown length: that of {file.format} cannot be checked; convert it to WAV or FLAC: {content.name}"
    if claim := CLAIM.search(file.extra_info):
        claimed, there = int(claim[1]), int(claim[2])
        if claimed not in UNKNOWN_BYTES and claimed - there > TOLERATED_S * file.samplerate:
            return f"truncated audio: its header claims {claimed} bytes, {there} are there, in {content.name}"
    return _sphere_problem(file, content) if file.format == "NIST" else None


def _sphere_problem(file: soundfile.SoundFile, content: AudioContent) -> str | None:
    with content.bytes() as opened:
        claim = SAMPLE_COUNT.search(opened.read(SPHERE_HEADER_BYTES))
    if claim is None:
        return f"unknown length: its header has no sample_count; convert it to WAV or FLAC: {content.name}"
    if int(claim[1]) - file.frames > TOLERATED_S * file.samplerate:
        return f"truncated audio: its header claims {int(claim[1])} samples, {file.frames} are there, in {content.name}"
    return None


def end_problem(file: soundfile.SoundFile, content: AudioContent) -> str | None:
    """Return why the end of a file cannot be read, or None."""
    if not file.seekable():
        return f"unreadable audio: {file.subtype} cannot be read in parts; convert it to WAV or FLAC: {content.name}"
    if file.format == "OGG" and (problem := _ogg_end_problem(content)):
        return problem
    file.seek(file.frames - 1)
    if len(file.read(1)) == 0:
        return f"truncated audio: the last of {file.frames} samples cannot be read from {content.name}"
    return None


def _ogg_end_problem(content: AudioContent) -> str | None:
    """Return what the last page of an Ogg file says of a part that is missing, or None: its length is in no header."""
    with content.bytes() as opened:
        opened.seek(max(0, opened.seek(0, 2) - MAX_OGG_PAGE_BYTES))
        end = opened.read()
    page = end[end.rfind(OGG_MARK) :]
    num_segments = page[OGG_HEADER_BYTES - 1] if len(page) >= OGG_HEADER_BYTES else 256
    sizes = page[OGG_HEADER_BYTES : OGG_HEADER_BYTES + num_segments]
    if len(sizes) < num_segments or len(page) < OGG_HEADER_BYTES + num_segments + sum(sizes):
        return f"truncated audio: it ends within a page of Ogg, in {content.name}"
    if not page[OGG_FLAGS] & OGG_IS_LAST:
        return (
            f"truncated audio: no page of Ogg is marked as the last, in {content.name}; if it is whole, rewrite it "
            "(ffmpeg -i … -c copy …)"
        )
    return None
