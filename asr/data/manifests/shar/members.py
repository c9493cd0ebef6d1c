"""Members of a tar shard: named as a part of that file, found and read at once; audio is decoded from memory."""

from __future__ import annotations

import functools
import io
import os
import re
import zlib
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
import soundfile
from lhotse.audio.backend import LibsndfileBackend
from lhotse.utils import compute_num_samples

from asr.errors import TOO_MANY_FILES, UnusableFile

# as in Kaldi's tables, a place follows the path: byte, number of bytes, checksum
NAME = re.compile(r"(/.*\.tar):([0-9]{1,15})\+([0-9]{1,10})(?:#([0-9a-f]{8}))?", re.DOTALL)
MAX_OPEN = 16  # shards that a process keeps open
REMEDY = "restore the file as it was, then run the same command again; a run can be resumed"


class UnusableShard(UnusableFile):
    """A shard is missing, or has changed."""


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
        found = NAME.fullmatch(source) if isinstance(source, str) else None
        if found is None:
            return None
        tar, offset, num_bytes, crc32 = found.groups()
        return cls(tar, int(offset), int(num_bytes), None if crc32 is None else int(crc32, 16))

    def __str__(self) -> str:
        checksum = "" if self.crc32 is None else f"#{self.crc32:08x}"
        return f"{self.tar}:{self.offset}+{self.num_bytes}{checksum}"

    def checked(self) -> ShardMember:
        """Return the member with the checksum of what it holds now.

        Raises:
            UnusableShard: it cannot be read.
        """
        return self if self.crc32 is not None else replace(self, crc32=zlib.crc32(self.read()))

    def read(self) -> bytes:
        """Return its content.

        Raises:
            UnusableShard: the shard is missing, or has other bytes in this place.
            OSError: too many files are open.
        """
        return _read(self)


@functools.lru_cache(maxsize=1)  # what was checked is decoded next
def _read(member: ShardMember) -> bytes:
    content = b""
    try:
        descriptor = _tars.descriptor(member.tar)
        # one call reads at most 2 GB, and less from some network disks
        while more := os.pread(descriptor, member.num_bytes - len(content), member.offset + len(content)):
            content += more
    except OSError as error:
        if error.errno in TOO_MANY_FILES:
            raise
        raise UnusableShard(f"the shard {member.tar} cannot be read: {error.strerror}; {REMEDY}") from error
    if len(content) != member.num_bytes:
        raise UnusableShard(
            f"the shard {member.tar} was cut short: it ends before byte {member.offset + member.num_bytes}; {REMEDY}"
        )
    if member.crc32 not in (None, zlib.crc32(content)):
        raise UnusableShard(
            f"the shard {member.tar} has changed since the data were prepared: the checksum of the member at byte "
            f"{member.offset} differs; {REMEDY}"
        )
    return content


class _OpenTars:
    """Shards that stay open, the last used: opening one takes a round trip on a network disk."""

    def __init__(self) -> None:
        self.found: OrderedDict[str, int] = OrderedDict()

    def descriptor(self, path: str) -> int:
        """Return an open file that has no position of its own, so that processes may share it."""
        if path in self.found:
            self.found.move_to_end(path)
            return self.found[path]
        descriptor = self.found[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if len(self.found) > MAX_OPEN:
            os.close(self.found.popitem(last=False)[1])
        return descriptor

    def forget(self, path: str) -> None:
        """Close a shard that will be written again."""
        if path in self.found:
            os.close(self.found.pop(path))
        _read.cache_clear()


_tars = _OpenTars()
forget = _tars.forget


class FilesAndShards(LibsndfileBackend):
    """lhotse's reader of audio by libsndfile, also of members of shards."""

    def read_audio(
        self,
        path_or_fd: object,
        offset: float = 0.0,
        duration: float | None = None,
        force_opus_sampling_rate: int | None = None,
    ) -> tuple[np.ndarray, int]:
        """Return samples (channels, N) float32, and their rate in Hz."""
        member = ShardMember.find(path_or_fd)
        if member is None:
            return super().read_audio(path_or_fd, offset, duration, force_opus_sampling_rate)
        with soundfile.SoundFile(io.BytesIO(member.read())) as file:
            num_samples = file.frames if duration is None else compute_num_samples(duration, file.samplerate)
            if offset > 0:
                file.seek(compute_num_samples(offset, file.samplerate))
            return file.read(num_samples, dtype="float32", always_2d=True).T, file.samplerate
