"""Members of a tar shard: named as a part of that file, found and read at once; audio is decoded from memory."""

from __future__ import annotations

import functools
import io
import os
import re
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from lhotse.audio.backend import LibsndfileBackend

from asr.data.quiet_decoder import quiet_decoder
from asr.errors import TOO_MANY_FILES, UnusableFile

# as in Kaldi's tables, a place follows the path: byte, number of bytes, checksum
NAME = re.compile(r"(/.*\.tar):([0-9]{1,15})\+([0-9]{1,10})(?:#([0-9a-f]{8}))?", re.DOTALL)
MAX_OPEN = 16  # shards that a process keeps open
REMEDY = "restore the file as it was, then run the same command again; a run can be resumed"


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


class FilesAndShards(LibsndfileBackend):
    """lhotse's reader of audio by libsndfile, also of members of shards."""

    def read_audio(self, path_or_fd: object, *args: Any, **kwargs: Any) -> tuple[np.ndarray, int]:
        """Return samples (channels, N) float32, and their rate in Hz."""
        member = ShardMember.find(path_or_fd)
        source = path_or_fd if member is None else io.BytesIO(member.read())
        with quiet_decoder(source):
            samples: tuple[np.ndarray, int] = super().read_audio(source, *args, **kwargs)
        return samples
