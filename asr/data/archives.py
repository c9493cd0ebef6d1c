"""Fetching and unpacking what a corpus comes in, without trusting it."""

from __future__ import annotations

import hashlib
import http.client
import lzma
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import rich.progress
from rich.progress import Progress, track

MAX_UNPACKED_BYTES = 2**40
MAX_MEMBERS = 10**6
CHUNK_BYTES = 2**20
MAX_PADDING_CHUNKS = 64
TIMEOUT_S = 30
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# what the readers of archives raise where bytes are wrong or missing; OSError stands for a bad checksum of gzip
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, NotImplementedError, OSError)


def extract(
    archive: Path, folder: Path, *, max_bytes: int = MAX_UNPACKED_BYTES, max_members: int = MAX_MEMBERS
) -> Path:
    """Unpack a tar or zip archive into a folder that appears complete or not at all; return the folder.

    Raises:
        ValueError: the file is no archive, or damaged, or one of its members is a link, a device, encrypted, leads out
            of the folder, or makes the whole larger than allowed.
    """
    if folder.exists():
        return folder
    work = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        _unpack(archive, work, Bounds(archive, max_bytes, max_members))
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    work.rename(folder)
    return folder


def _unpack(archive: Path, folder: Path, bounds: Bounds) -> None:
    try:
        if tarfile.is_tarfile(archive):
            _extract_tar(archive, folder, bounds)
        elif zipfile.is_zipfile(archive):
            _extract_zip(archive, folder, bounds)
        else:
            raise ValueError(f"{archive} is neither a tar nor a zip archive, or its beginning is damaged")
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk is full, say: nothing that the archive could help
        raise ValueError(f"{archive} is damaged: {error or type(error).__name__}; fetch it again") from error


class Bounds:
    """Counts the members of an archive, and refuses those that a corpus has no need of."""

    def __init__(self, archive: Path, max_bytes: int, max_members: int) -> None:
        self.archive = archive
        self.max_bytes, self.max_members = max_bytes, max_members
        self.num_bytes = self.num_members = 0

    def check(self, name: str, size_bytes: int, is_plain: bool) -> None:
        """Refuse a member before it is unpacked."""
        self.num_bytes += size_bytes
        self.num_members += 1
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or (path.parts and path.parts[0].endswith(":")):
            self._refuse(f"its member {name!r} leads out of the folder")
        if not is_plain:
            self._refuse(f"its member {name!r} is a link, a device or encrypted; only plain files are unpacked")
        if self.num_bytes > self.max_bytes:
            self._refuse(f"it unpacks to more than {self.max_bytes} bytes")
        if self.num_members > self.max_members:
            self._refuse(f"it has more than {self.max_members} members")

    def _refuse(self, why: str) -> None:
        raise ValueError(f"{self.archive} is refused: {why}. If you trust it, unpack it yourself and give the folder.")


def _extract_tar(archive: Path, folder: Path, bounds: Bounds) -> None:
    with (
        rich.progress.open(archive, "rb", description=f"unpacking {archive.name}", transient=True) as file,
        tarfile.open(fileobj=file) as tar,
    ):
        for member in tar:
            bounds.check(member.name, member.size, member.isfile() or member.isdir())
            tar.extract(member, folder, filter="data")
        _read_padding(tar.fileobj)


def _read_padding(file: Any) -> None:
    """Read what follows the last member: only there a compressed stream tells whether its checksum is right."""
    for _ in range(MAX_PADDING_CHUNKS):
        if not file.read(CHUNK_BYTES):
            return


def _extract_zip(archive: Path, folder: Path, bounds: Bounds) -> None:
    with zipfile.ZipFile(archive) as zipped:
        members = zipped.infolist()
        for member in members:
            is_link = (member.external_attr >> 16) & 0o170000 == 0o120000
            is_encrypted = bool(member.flag_bits & 1)
            bounds.check(member.filename, member.file_size, not (is_link or is_encrypted))
        for member in track(members, f"unpacking {archive.name}", transient=True):
            zipped.extract(member, folder)


def download(url: str, path: Path, sha256: str | None = None) -> Path:
    """Fetch a file with a progress bar, unless it is there; it appears complete or not at all.

    Args:
        url: of scheme https, or on this machine.
        path: where it goes.
        sha256: of the content, where it is known.

    Raises:
        ValueError: it could not be fetched, or is not what was expected.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f"{path.name}.partial")
    try:
        digest = _fetch(url, work)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise ValueError(f"{url} could not be fetched ({error}); with a copy of your own: data.source=PATH") from error
    if sha256 is not None and digest != sha256:
        raise ValueError(f"{url} is not what was expected: its SHA-256 is {digest}, not {sha256}")
    work.rename(path)
    return path


def _fetch(url: str, path: Path) -> str:
    """Write what ``url`` holds to ``path``; return its SHA-256."""
    digest = hashlib.sha256()
    _refuse_insecure(url)
    opener = urllib.request.build_opener(SecureRedirections)
    with opener.open(url, timeout=TIMEOUT_S) as response, path.open("wb") as file, Progress() as progress:
        length = int(response.headers.get("Content-Length") or 0)
        task = progress.add_task(f"fetching {path.name.removesuffix('.partial')}", total=length or None)
        while chunk := response.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            progress.advance(task, len(chunk))
        # a connection that breaks off looks like the end of the file
        if length and file.tell() != length:
            raise OSError(f"the connection ended after {file.tell()} of {length} bytes")
    return digest.hexdigest()


class SecureRedirections(urllib.request.HTTPRedirectHandler):
    """Follows a redirection only to where a download may start."""

    def redirect_request(self, *args: Any) -> urllib.request.Request | None:
        """Refuse insecure addresses; the last argument is the new one."""
        _refuse_insecure(args[-1])
        return super().redirect_request(*args)


def _refuse_insecure(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise ValueError(f"{url} is not fetched: only https is")
