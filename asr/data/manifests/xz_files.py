"""Decompresses xz with a limit of memory: a header may ask for a dictionary of 4 GB."""

from __future__ import annotations

import lzma
from typing import IO

MAX_MEMORY_BYTES = 2**28  # xz -9 needs a quarter of it
CHUNK_BYTES = 2**16
MAGIC = (b"\xfd7zXZ\x00", b"\x5d\x00\x00")  # of .xz and of .lzma


class BoundedXz:
    """Reads one or several streams of xz; ``lzma.open`` has no limit of memory.

    Args:
        file: open for reading, at its beginning.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decompressor: lzma.LZMADecompressor | None = None
        self._packed = b""

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, none at the end.

        Raises:
            lzma.LZMAError: the content is damaged, or asks for too much memory.
            EOFError: it ends early.
        """
        while True:
            if (self._decompressor is None or self._decompressor.eof) and not self._start():
                return b""
            assert self._decompressor is not None
            if self._decompressor.needs_input:
                self._packed = self._packed or self._file.read(CHUNK_BYTES)
                if not self._packed:
                    raise EOFError("the compressed content ends early")
            packed, self._packed = self._packed, b""
            try:
                data = self._decompressor.decompress(packed, size)
            except lzma.LZMAError as error:
                if "Memory usage limit" not in str(error):
                    raise
                raise lzma.LZMAError(
                    f"unpacking it takes more than {MAX_MEMORY_BYTES} bytes of memory; pack it with xz -9 at most"
                ) from error
            if data:
                return data

    def _start(self) -> bool:
        """Begin the next stream, if there is one; streams are padded with zeros."""
        packed = self._decompressor.unused_data if self._decompressor else b""
        while not (packed := packed.lstrip(b"\0")):
            if not (packed := self._file.read(CHUNK_BYTES)):
                return False
        self._decompressor, self._packed = lzma.LZMADecompressor(memlimit=MAX_MEMORY_BYTES), packed
        return True
