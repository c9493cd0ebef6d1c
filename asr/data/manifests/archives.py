"""Downloads and unpacks archives of corpora without trusting them."""

from __future__ import annotations

import errno
import hashlib
import http.client
import lzma
import os
import shutil
import struct
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn
from urllib.parse import urlsplit

import rich.progress
from rich.progress import Progress

from asr.console import PlainConsole, bar_title, track
from asr.data.manifests import xz_files
from asr.data.manifests.source_files import refuse_special
from asr.data.manifests.tar_headers import BoundedHeader

MAX_UNPACKED_BYTES = 2**40
MAX_MEMBERS = 10**6
# recordings and transcripts compress to a tenth at best; an archive that grows more is made to fill a disk
MAX_RATIO = 200
FREE_BYTES = 2**26
FREE_MEMBERS, BYTES_PER_MEMBER = 2000, 64
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 3000  # a file system allows 4096, the folder's own path included
MAX_DEPTH = 100  # folders in folders; each is a call of a function in a function of the standard library
# zipfile makes an object of every 46 bytes before any member can be checked
MAX_DIRECTORY_BYTES = 46 * MAX_MEMBERS
CHUNK_BYTES = 2**20
MAX_PADDING_CHUNKS = 64
TIMEOUT_S = 30
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# raised by tarfile, zipfile and gzip where bytes are wrong or missing; OSError by gzip for a bad checksum
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    MemoryError,  # a compressor's dictionary claims gigabytes
    zlib.error,
    lzma.LZMAError,
    struct.error,
    LookupError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
)


def extract(
    archive: Path, folder: Path, *, max_bytes: int = MAX_UNPACKED_BYTES, max_members: int = MAX_MEMBERS
) -> Path:
    """Unpack a tar or zip archive into a folder that appears complete or not at all; return the folder.

    Raises:
        ValueError: the file is no archive, or damaged; or a member is a link, a device, encrypted, leads out of the
            folder, or exceeds the limits.
    """
    if folder.exists():
        return folder
    refuse_special(archive, "archive")
    work = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        _unpack(archive, work, ArchiveLimits(archive, max_bytes, max_members))
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    work.rename(folder)
    return folder


def _unpack(archive: Path, folder: Path, limits: ArchiveLimits) -> None:
    try:
        if _is_tar(archive):
            _extract_tar(archive, folder, limits)
        elif zipfile.is_zipfile(archive):
            _extract_zip(archive, folder, limits)
        else:
            raise ValueError(f"{archive} is neither a tar nor a zip archive, or its beginning is damaged")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError(f"{archive} is refused: it has a file and a folder of the same name: {error}") from error
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            # such as a full disk, which is no fault of the archive
            raise OSError(error.errno, error.strerror, error.filename or str(folder)) from error
        raise ValueError(f"{archive} is damaged: {str(error) or type(error).__name__}; fetch it again") from error
    except ValueError as error:
        # messages of zipfile and of the file system do not name the archive
        raise error if str(archive) in str(error) else ValueError(f"{archive} is damaged: {error}") from error


def _is_tar(archive: Path) -> bool:
    # tarfile's own check reads the first header with whatever it announces
    try:
        with archive.open("rb") as file, _open_tar(file):
            return True
    except tarfile.TarError:
        return False
    except ValueError as error:
        raise ValueError(f"{archive} is refused: {error}") from error


class ArchiveLimits:
    """Counts members and bytes of an archive, and refuses members that no corpus needs."""

    def __init__(self, archive: Path, max_bytes: int, max_members: int) -> None:
        self.archive = archive
        size = archive.stat().st_size
        self.max_bytes = min(max_bytes, FREE_BYTES + MAX_RATIO * size)
        self.max_members = min(max_members, FREE_MEMBERS + size // BYTES_PER_MEMBER)
        self.num_bytes = self.num_members = 0

    def check(self, name: str, size_bytes: int, is_plain: bool) -> None:
        """Refuse a member before it is unpacked."""
        self.num_bytes += size_bytes
        self.num_members += 1
        self.check_number(self.num_members)
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or (path.parts and path.parts[0].endswith(":")):
            self._refuse(f"its member {name[:200]!r} leads out of the folder")
        longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
        if longest > MAX_NAME_BYTES or len(os.fsencode(name)) > MAX_PATH_BYTES or "\0" in name:
            self._refuse(f"its member {name[:80]!r} has a name of {len(name)} characters, which no file may have")
        if len(path.parts) > MAX_DEPTH:
            self._refuse(f"its member {name[:80]!r} lies {len(path.parts)} folders deep; at most {MAX_DEPTH} are made")
        if not is_plain:
            self._refuse(f"its member {name[:200]!r} is a link, a device or encrypted; only plain files are unpacked")
        if size_bytes < 0:
            self._refuse(f"its member {name[:80]!r} has a negative size")
        if self.num_bytes > self.max_bytes:
            self._refuse(f"it unpacks to more than {self.max_bytes} bytes")

    def check_number(self, num_members: int) -> None:
        """Refuse a number of members."""
        if num_members > self.max_members:
            self._refuse(f"it has more than {self.max_members} members")

    def check_directory(self) -> None:
        """Refuse a zip's list of members before it is read."""
        with self.archive.open("rb") as file:
            end: Any = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # what ZipFile itself goes by
        num_members, num_bytes = end[4], end[5]
        self.check_number(num_members)
        if num_bytes > MAX_DIRECTORY_BYTES:
            self._refuse(f"its list of members has {num_bytes} bytes, more than {MAX_DIRECTORY_BYTES}")

    def members(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        """Yield the members of a tar, whose headers are checked while they are read."""
        try:
            while (member := tar.next()) is not None:
                yield member
        except DAMAGE:
            raise
        except Exception as error:  # tarfile may raise anything on impossible numbers and names
            self._refuse(str(error) or type(error).__name__)

    def _refuse(self, why: str) -> NoReturn:
        raise ValueError(f"{self.archive} is refused: {why}. If you trust it, unpack it yourself and give the folder.")


def _open_tar(file: Any) -> tarfile.TarFile:
    """Open a tar of any compression."""
    beginning = file.read(8)
    file.seek(0)
    if beginning.startswith(xz_files.MAGIC):
        unpacked: Any = xz_files.BoundedXz(file)
        return tarfile.open(fileobj=unpacked, mode="r|", tarinfo=BoundedHeader)
    # not "r:*", which tries xz on anything, and xz takes as much memory as its header asks for, up to 4 GB
    kind: Any = "gz" if beginning.startswith(b"\x1f\x8b") else "bz2" if beginning.startswith(b"BZh") else ""
    return tarfile.open(fileobj=file, mode=f"r:{kind}", tarinfo=BoundedHeader)  # type: ignore[call-overload]


def _extract_tar(archive: Path, folder: Path, limits: ArchiveLimits) -> None:
    title = bar_title(f"unpacking {archive.name}")
    with (
        rich.progress.open(archive, "rb", description=title, console=PlainConsole(), transient=True) as file,
        _open_tar(file) as tar,
    ):
        for member in limits.members(tar):
            limits.check(member.name, member.size, member.isfile() or member.isdir())
            tar.extract(member, folder, filter="data")
            # tarfile keeps every header, which a tar of many members would fill the memory with
            tar.members.clear()  # type: ignore[attr-defined]
        # a compressed stream checks its checksum at its end, after the last member
        for _ in range(MAX_PADDING_CHUNKS):
            if not tar.fileobj.read(CHUNK_BYTES):
                return


def _extract_zip(archive: Path, folder: Path, limits: ArchiveLimits) -> None:
    limits.check_directory()
    with zipfile.ZipFile(archive) as zipped:
        members = zipped.infolist()
        if sum(member.compress_size for member in members) > archive.stat().st_size:
            raise ValueError(f"{archive} is refused: its members overlap, so that it unpacks to more than it holds")
        for member in members:
            is_link = (member.external_attr >> 16) & 0o170000 == 0o120000
            is_encrypted = bool(member.flag_bits & 1)
            if member.compress_type == zipfile.ZIP_LZMA:
                # zipfile cannot limit its memory
                raise ValueError(f"{archive} is refused: it is packed by LZMA. Unpack it yourself and give the folder.")
            limits.check(member.filename, member.file_size, not (is_link or is_encrypted))
        for member in track(members, f"unpacking {archive.name}", transient=True):
            zipped.extract(member, folder)


def download(url: str, path: Path, sha256: str | None = None, md5: str | None = None) -> Path:
    """Download a file with a progress bar, unless it exists; it appears complete or not at all.

    Args:
        url: https, or a server on this machine.
        path: of the file.
        sha256: of the content, if known.
        md5: where this is what is published: it finds damage, not intent.

    Raises:
        ValueError: the download failed, or the content is another.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f"{path.name}.partial")
    content = hashlib.sha256() if md5 is None else hashlib.md5(usedforsecurity=False)
    try:
        _fetch(url, work, content)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise ValueError(f"{url} could not be downloaded ({error}); if you have a copy: data.source=PATH") from error
    expected, digest = sha256 if md5 is None else md5, content.hexdigest()
    if expected is not None and digest != expected:
        kind = "SHA-256" if md5 is None else "MD5"
        raise ValueError(f"{url} is not what was expected: its {kind} is {digest}, not {expected}")
    work.rename(path)
    return path


def _fetch(url: str, path: Path, digest: hashlib._Hash) -> None:
    """Write the content of ``url`` to ``path`` and to ``digest``."""
    _refuse_insecure(url)
    opener = urllib.request.build_opener(SecureRedirects)
    bar = Progress(console=PlainConsole())
    with opener.open(url, timeout=TIMEOUT_S) as response, path.open("wb") as file, bar as progress:
        length = int(response.headers.get("Content-Length") or 0)
        task = progress.add_task(bar_title(f"fetching {path.name.removesuffix('.partial')}"), total=length or None)
        while chunk := response.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            progress.advance(task, len(chunk))
        # urllib takes a lost connection for the end of the file
        if length and file.tell() != length:
            raise OSError(f"the connection ended after {file.tell()} of {length} bytes")


class SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to secure addresses only."""

    def redirect_request(self, *args: Any) -> urllib.request.Request | None:
        """Refuse an insecure new address, which is the last argument."""
        _refuse_insecure(args[-1])
        return super().redirect_request(*args)


def _refuse_insecure(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise ValueError(f"{url} is refused: only https is allowed")
