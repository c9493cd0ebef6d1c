"""Tars of Shar folders that are more or less than what they should hold, for a field of any kind."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from typing import Any

from tests.security.hostile_pickle import MakesFolder

Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, content: bytes = b"", **fields: Any) -> Member:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    for field, value in fields.items():
        setattr(header, field, value)
    return header, content


def packed(*members: Member) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for header, content in members:
            tar.addfile(header, io.BytesIO(content))
    return made.getvalue()


def resized(tar: bytes, size: bytes) -> bytes:
    """Return a tar whose first member claims another size, with a checksum that fits."""
    header = bytearray(tar[:512])
    header[124:136] = size.ljust(12, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + tar[512:]


def bad_tars(content: bytes, manifest: bytes, ending: str, holds: str, of_what: str) -> dict[str, tuple[bytes, str]]:
    """Return tars by name, with a part of what is said of each.

    Args:
        content: of a good member of the cut ``a``.
        manifest: of it, a JSON object that ends with a brace and a line feed.
        ending: of the member's name.
        holds: what the tar holds, as messages call it.
        of_what: what the manifest describes, as messages call it.
    """

    def pair(name: str = "a", told: bytes = manifest) -> tuple[Member, Member]:
        return member(f"{name}{ending}", content), member(f"{name}.json", told)

    def odd(**fields: Any) -> bytes:
        return packed(member(f"a{ending}", **fields))

    good, elsewhere, no_file = packed(*pair()), "/etc/passwd", "is a link, a folder or a device"
    after = 512 + -(-len(content) // 512) * 512
    long_manifest = manifest.rstrip()[:-1] + b', "x": "' + b"x" * 2**21 + b'"}\n'
    attributes = packed(member("././@PaxHeader", b"1000000000 path=a\n", type=tarfile.XHDTYPE), *pair())
    return {
        "an absolute path": (packed(*pair("/etc/a")), "leads out of the folder"),
        "a path that leads out": (packed(*pair("../a")), "leads out of the folder"),
        "a path into another folder": (packed(*pair("b/a")), f"holds {holds} of 'b/a' where"),
        "a link": (odd(type=tarfile.SYMTYPE, linkname=elsewhere), no_file),
        "a hard link": (odd(type=tarfile.LNKTYPE, linkname=elsewhere), no_file),
        "a device": (odd(type=tarfile.CHRTYPE), no_file),
        "a pipe": (odd(type=tarfile.FIFOTYPE), no_file),
        "a folder": (odd(type=tarfile.DIRTYPE), no_file),
        "a sparse file": (odd(content=content, type=tarfile.GNUTYPE_SPARSE), "a sparse file"),
        "a size of a terabyte": (resized(good, b"20000000000\0"), "was cut short"),
        "a size below zero": (resized(good, b"\xff" * 12), "negative size"),
        "a size that hides the next member": (resized(good, b"%011o\0" % (len(content) + 4096)), ".000000.tar"),
        "a name of a gigabyte": (
            resized(packed(member("x", type=tarfile.GNUTYPE_LONGNAME)), b"10000000000\0"),
            "announces",
        ),
        "attributes of a gigabyte": (resized(attributes, b"10000000000\0"), "announces"),
        "no tar": (b"no tar at all" * 100, "no uncompressed tar"),
        "a pickle in place of a tar": (pickle.dumps(MakesFolder()), "no uncompressed tar"),
        "a tar that is packed": (gzip.compress(good), "no uncompressed tar"),
        "a tar that is cut short in a member": (good[: 512 + len(content) // 2], "it was cut short; restore it"),
        "a tar that is cut short after a member": (good[:after], f"no manifest follows 'a{ending}'"),
        "a tar without members": (packed(), f"ends before the {holds} of 'a'"),
        "an empty file": (b"", "no uncompressed tar"),
        "a member without bytes": (packed(member(f"a{ending}"), pair()[1]), f"{holds} of 0 bytes"),
        "a member of another cut": (packed(*pair("b")), f"holds {holds} of 'b' where"),
        "a manifest of another member": (packed(pair()[0], pair("b")[1]), "is not its manifest"),
        "more members than cuts": (packed(*pair() * 2), f"has more {holds} than"),
        "a manifest of 2 MB": (packed(*pair(told=long_manifest)), "is refused"),
        "a manifest nested deeply": (packed(*pair(told=b"[" * 10**5)), f"this is no manifest of {of_what}"),
        "a pickle as manifest": (packed(*pair(told=pickle.dumps(MakesFolder()))), f"this is no manifest of {of_what}"),
    }
