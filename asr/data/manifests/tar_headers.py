"""Headers of tar archives, refused where they would take memory without end."""

from __future__ import annotations

import tarfile
from typing import Any, NoReturn

# the longest path of a file system has 4096 bytes; tarfile reads a longer name, or list of attributes, at once
MAX_EXTENDED_BYTES = 2**14
EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class BoundedHeader(tarfile.TarInfo):
    """A header whose extensions are small, and which describes no sparse file.

    tarfile reads the name or the attributes that follow an extended header while it reads the next one, before anybody
    can look at them.
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
            _refuse_sparse()
        return header

    # called by tarfile for the three forms that attributes describe sparse files in
    def _proc_gnusparse_00(self, *_: Any) -> None:
        _refuse_sparse()

    def _proc_gnusparse_01(self, *_: Any) -> None:
        _refuse_sparse()

    def _proc_gnusparse_10(self, *_: Any) -> None:
        _refuse_sparse()


def _refuse_sparse() -> NoReturn:
    raise ValueError("a member of it is a sparse file, whose few bytes may stand for terabytes")
