"""Archives that are made to fill memory or a disk: refused within seconds, with one line, leaving nothing."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import resource
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from asr.data.manifests.archives import extract

GIB = 2**30


def header(name: str = "x", size: int = 0, kind: bytes = tarfile.REGTYPE, linkname: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, linkname
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(**attributes: str) -> bytes:
    info = tarfile.TarInfo("x")
    info.pax_headers = {name.replace("_", "."): value for name, value in attributes.items()}
    return info.tobuf(tarfile.PAX_FORMAT)


def zeros(num_bytes: int) -> Iterator[bytes]:
    for _ in range(num_bytes // 2**20):
        yield bytes(2**20)


def write_gz(path: Path, *parts: bytes | Iterator[bytes]) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part in parts:
            for piece in (part,) if isinstance(part, bytes) else part:
                file.write(piece)


def gz(*parts: bytes | Callable[[], Iterator[bytes]]) -> Callable[[Path], None]:
    return lambda path: write_gz(path, *(part if isinstance(part, bytes) else part() for part in parts))


def long_name(kind: bytes) -> Callable[[Path], None]:
    return gz(header("././@LongLink", 6 * GIB, kind), lambda: zeros(GIB))


def many_headers(path: Path) -> None:
    write_gz(path, header("x/", kind=tarfile.DIRTYPE) * 200_000)


def sparse(path: Path) -> None:
    write_gz(path, header("x", 512, tarfile.GNUTYPE_SPARSE), bytes(512))


def overlapping_zip(path: Path) -> None:
    """Let many names point to one member."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("0", bytes(2**20))
        for number in range(1, 2000):
            info = zipfile.ZipInfo(str(number))
            info.header_offset, info.CRC = 0, zipped.infolist()[0].CRC
            info.compress_size, info.file_size = zipped.infolist()[0].compress_size, 2**20
            info.compress_type = zipfile.ZIP_DEFLATED
            zipped.filelist.append(info)
            zipped.NameToInfo[info.filename] = info


def deflated_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for number in range(3):
            with zipped.open(str(number), "w") as member:
                for piece in zeros(2**27):
                    member.write(piece)


def directory_zip(num_entries: int, claimed: int) -> Callable[[Path], None]:
    """Name a member millions of times, and claim that there are fewer."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", *(0,) * 11, 1, *(0,) * 6) + b"x"

    def make(path: Path) -> None:
        size = len(entry) * num_entries
        where = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, claimed, claimed, size, 0)
        locator = struct.pack("<4sLQL", b"PK\6\7", 0, size, 1)
        end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)
        path.write_bytes(entry * num_entries + where + locator + end)

    return make


def zip_of(*names: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as zipped:
            for name in names:
                zipped.writestr(name, "x")

    return make


def lying_zip(path: Path) -> None:
    """Claim fewer bytes than there are."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("a", bytes(2**20))
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<I", 2**20), struct.pack("<I", 10)))


def greedy_xz(path: Path) -> None:
    """Ask for a dictionary of 4 GB."""
    data = bytearray(lzma.compress(header("x", 512) + bytes(10_240)))
    size = 4 * (data[12] + 1)  # of the header of the first block, which ends with its checksum
    data[data.index(b"\x21\x01", 12) + 2] = 40
    data[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(data[12 : 12 + size - 4]))
    path.write_bytes(data)


def greedy_second_xz(path: Path) -> None:
    greedy_xz(path)
    path.write_bytes(lzma.compress(header("x", 4096)) + path.read_bytes())


def greedy_lzma(dictionary_bytes: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        data = bytearray(lzma.compress(header("x", 512) + bytes(10_240), lzma.FORMAT_ALONE))
        data[1:5] = struct.pack("<I", dictionary_bytes)
        path.write_bytes(data)

    return make


def lzma_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as zipped:
        zipped.writestr("a", "x")


HOSTILE = {
    "an xz that takes 4 GB of memory": (greedy_xz, "damaged: unpacking it takes more than|neither"),
    "an lzma that takes 3 GB of memory": (greedy_lzma(3 * GIB), "damaged: unpacking it takes more than|neither"),
    "an lzma of an odd dictionary": (greedy_lzma(2**32 - 1), "neither a tar nor a zip"),
    "an xz whose second part takes 4 GB of memory": (greedy_second_xz, "damaged: unpacking it takes more than"),
    "an xz cut short": (lambda path: path.write_bytes(lzma.compress(header("x", 512) * 9)[:40]), "damaged|neither"),
    "an xz bomb": (
        lambda path: path.write_bytes(lzma.compress(header("x", 2 * GIB) + bytes(2**27), preset=0)),
        "unpacks to more than",
    ),
    "a zip packed by lzma": (lzma_zip, "packed by LZMA"),
    "a name of gigabytes": (long_name(tarfile.GNUTYPE_LONGNAME), "announces a name"),
    "a link's name of gigabytes": (long_name(tarfile.GNUTYPE_LONGLINK), "announces a name"),
    "attributes of gigabytes": (long_name(tarfile.XHDTYPE), "announces a name or attributes"),
    "attributes of all, of gigabytes": (long_name(tarfile.XGLTYPE), "announces a name or attributes"),
    "attributes of Solaris, of gigabytes": (long_name(tarfile.SOLARIS_XHDTYPE), "announces a name or attributes"),
    "a name of gigabytes after a good member": (
        gz(header("good", 512), bytes(512), header("x", 6 * GIB, tarfile.GNUTYPE_LONGNAME), lambda: zeros(2**28)),
        "announces a name",
    ),
    "a thousand names in a row": (
        gz((header("x", 512, tarfile.GNUTYPE_LONGNAME) + bytes(512)) * 3000),
        "is damaged",
    ),
    "a member of gigabytes of zeros": (gz(header("x", 2 * GIB), lambda: zeros(2**28)), "unpacks to more than"),
    "a member of petabytes": (gz(header("x", 2**50)), "unpacks to more than"),
    "a negative size": (gz(header("x", -1024)), "refused|damaged|neither"),
    "a negative size in attributes": (gz(pax(size="-5000")), "has a negative size"),
    "two hundred thousand folders": (many_headers, "members"),
    "a sparse file": (sparse, "sparse"),
    "a sparse file by attributes 0.0": (gz(pax(GNU_sparse_size="99999999999")), "sparse"),
    "a sparse file by attributes 0.1": (gz(pax(GNU_sparse_map="0,99999999999")), "sparse"),
    "a sparse file by attributes 1.0": (gz(pax(GNU_sparse_major="1", GNU_sparse_minor="0")), "sparse"),
    "a name of 5000 characters": (gz(pax(path="n" * 5000)), "5000 characters"),
    "a path of 5000 characters": (gz(pax(path="n/" * 2500)), "characters"),
    "a name of 300 characters": (gz(pax(path="n" * 300)), "300 characters"),
    "a name of 256 bytes in 128 letters": (gz(pax(path="ü" * 128)), "128 characters"),
    "a name with an end": (gz(pax(path="a\0b")), "characters"),
    "a link out": (gz(header("x", kind=tarfile.SYMTYPE, linkname="/etc")), "is a link"),
    "a pipe": (gz(header("x", kind=tarfile.FIFOTYPE)), "is a link, a device"),
    "an unknown kind": (gz(header("x", 512, b"Z"), bytes(512), header("../y")), "leads out|refused"),
    "a file that is a folder too": (gz(header("a", 0), header("a/b", 0)), "same name"),
    "a folder that is a file too": (gz(header("a/b", 0), header("a", 0)), "same name|refused"),
    "a zip that shrinks to a thousandth": (deflated_zip, "unpacks to more than"),
    "a zip whose members overlap": (overlapping_zip, "overlap"),
    "a zip that leads out": (zip_of("good", "../hacked"), "leads out"),
    "a zip with an absolute name": (zip_of("/hacked"), "leads out"),
    "a zip with a drive": (zip_of("C:\\hacked"), "leads out"),
    "a zip with a name of 5000 characters": (zip_of("n" * 5000), "5000 characters"),
    "a zip with a file that is a folder too": (zip_of("a", "a/b"), "same name"),
    "a zip that claims too little": (lying_zip, "damaged|refused"),
    "a zip of millions of members": (directory_zip(10, 4 * 10**6), "it has more than 2008 members"),
    "a zip of more members than it claims": (directory_zip(10**6, 7), "its list of members has 47000000 bytes"),
    "a zip of folders in folders": (zip_of("n/" * 1400 + "x"), "lies 1401 folders deep; at most 100"),
    "a tar of folders in folders": (gz(pax(path="n/" * 1400)), "lies 1400 folders deep; at most 100"),
    "nothing": (lambda path: path.write_bytes(b""), "neither a tar nor a zip"),
    "text": (lambda path: path.write_bytes(b"hello" * 1000), "neither a tar nor a zip"),
    "a gz cut short": (lambda path: path.write_bytes(gzip.compress(header("x", 512) * 9)[:40]), "damaged|neither"),
}


@pytest.mark.parametrize(("make", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_an_archive_made_to_harm_is_refused_soon_and_leaves_nothing(tmp_path, make, message):
    make(tmp_path / "archive")
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ValueError, match=message) as refused:
        extract(tmp_path / "archive", tmp_path / "in" / "out")
    assert time.process_time() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GIB / 1024
    assert str(tmp_path / "archive") in str(refused.value)
    assert len(str(refused.value)) < 1000
    assert not (tmp_path / "in").exists() or list((tmp_path / "in").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} <= {"archive", "in"}


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_flipped_bytes_are_refused_or_harmless(tmp_path, kind):
    rng = random.Random(3)
    content = io.BytesIO()
    if kind == "tar":
        with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in ("a", "b/" + "c" * 150, "ü"):
                info = tarfile.TarInfo(name)
                info.size = 700
                tar.addfile(info, io.BytesIO(b"x" * 700))
    else:
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name in ("a", "b/c", "ü"):
                zipped.writestr(name, b"x" * 700)
    good, folder = content.getvalue(), tmp_path / "in"
    for number in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "archive").write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        try:
            extract(tmp_path / "archive", folder / str(number))
        except ValueError:
            assert not (folder / str(number)).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "in"}
    assert not list(folder.glob("*.partial"))


def test_names_and_attributes_of_usual_length_are_read(tmp_path):
    with tarfile.open(tmp_path / "archive", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("d" * 200 + "/" + "ü" * 120)
        info.mtime = 1.5
        tar.addfile(info)
    with tarfile.open(tmp_path / "other", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("d" * 200 + "/" + "e" * 250))
    for name in ("archive", "other"):
        assert len(list(extract(tmp_path / name, tmp_path / f"{name}.out").iterdir())) == 1


@pytest.mark.parametrize("parts", [1, 3])
def test_an_archive_of_several_xz_streams_is_read(tmp_path, parts):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in ("a", "b/c"):
            info = tarfile.TarInfo(name)
            info.size = 300_000
            tar.addfile(info, io.BytesIO(random.Random(1).randbytes(info.size)))
    data = content.getvalue()
    cuts = [len(data) * number // parts for number in range(parts + 1)]
    packed = [lzma.compress(data[first:last]) + bytes(8) for first, last in pairwise(cuts)]
    (tmp_path / "archive").write_bytes(b"".join(packed))
    folder = extract(tmp_path / "archive", tmp_path / "out")
    assert (folder / "b/c").read_bytes() == (folder / "a").read_bytes() == random.Random(1).randbytes(300_000)
