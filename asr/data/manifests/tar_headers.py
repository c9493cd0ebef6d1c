"""Tar headers with limits, because tarfile reads whatever they announce."""

from __future__ import annotations

import tarfile
from typing import Any, NoReturn

# the longest path of a file system has 4096 bytes; tarfile reads a longer name or list of attributes into memory
MAX_EXTENDED_BYTES = 2**14
EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class BoundedHeader(tarfile.TarInfo):
    """A header with small extensions, and not of a sparse file.

    tarfile reads the name or attributes after an extended header together with the next header, before a caller can
    check them.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> BoundedHeader:
        """Read a header.

        Raises:
            ValueError: it announces too much, or a sparse file.
        """
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0:
            raise ValueError(f"its member {header.name[:80]!r} has a negative size")
        if header.type in EXTENDED and header.size > MAX_EXTENDED_BYTES:
            raise ValueError(
                f"a header of it announces a name or attributes of {header.size} bytes, more than {MAX_EXTENDED_BYTES}"
            )
        if header.type == tarfile.GNUTYPE_SPARSE:
            header._refuse_sparse()
        return header

    def _refuse_sparse(self, *_: Any) -> NoReturn:
        raise ValueError("a member of it is a sparse file, whose few bytes may stand for terabytes")

    # tarfile calls these for the three formats of sparse files
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse
