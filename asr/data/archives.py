"""Fetching and unpacking what a corpus comes in, without trusting it."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath

from rich.progress import Progress

MAX_UNPACKED_BYTES = 2**40
CHUNK_BYTES = 2**20
TIMEOUT_S = 30


def extract(archive: Path, folder: Path, max_bytes: int = MAX_UNPACKED_BYTES) -> Path:
    """Unpack a tar or zip archive into a folder that appears complete or not at all; return the folder.

    Raises:
        ValueError: the file is no archive, or one of its members is a link, a device, leads out of the folder, or
            makes the whole larger than ``max_bytes``.
    """
    if folder.exists():
        return folder
    work = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        if tarfile.is_tarfile(archive):
            _extract_tar(archive, work, max_bytes)
        elif zipfile.is_zipfile(archive):
            _extract_zip(archive, work, max_bytes)
        else:
            raise ValueError(f"{archive} is neither a tar nor a zip archive")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{archive} is damaged: {error}; fetch it again") from error
    work.rename(folder)
    return folder


def _check_member(archive: Path, name: str, plain: bool, total_bytes: int, max_bytes: int) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (path.parts and path.parts[0].endswith(":")):
        raise ValueError(f"{archive} is refused: its member {name!r} leads out of the folder")
    if not plain:
        raise ValueError(f"{archive} is refused: its member {name!r} is a link or a device; only files are unpacked")
    if total_bytes > max_bytes:
        raise ValueError(f"{archive} is refused: it unpacks to more than {max_bytes} bytes")


def _extract_tar(archive: Path, folder: Path, max_bytes: int) -> None:
    total = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            total += member.size
            _check_member(archive, member.name, member.isfile() or member.isdir(), total, max_bytes)
            tar.extract(member, folder, filter="data")


def _extract_zip(archive: Path, folder: Path, max_bytes: int) -> None:
    with zipfile.ZipFile(archive) as zipped:
        total = 0
        for member in zipped.infolist():
            total += member.file_size
            is_link = (member.external_attr >> 16) & 0o170000 == 0o120000
            _check_member(archive, member.filename, not is_link, total, max_bytes)
        zipped.extractall(folder)


def download(url: str, path: Path, sha256: str | None = None) -> Path:
    """Fetch a file with a progress bar, unless it is there; it appears complete or not at all.

    Raises:
        ValueError: it could not be fetched, or is not what was expected.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f"{path.name}.partial")
    try:
        digest = _fetch(url, work)
    except (urllib.error.URLError, OSError) as error:
        raise ValueError(f"{url} could not be fetched ({error}); with a copy of your own: data.source=PATH") from error
    if sha256 is not None and digest != sha256:
        raise ValueError(f"{url} is not what was expected: its SHA-256 is {digest}, not {sha256}")
    work.rename(path)
    return path


def _fetch(url: str, path: Path) -> str:
    """Write what ``url`` holds to ``path``; return its SHA-256."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response, path.open("wb") as file, Progress() as progress:
        length = response.headers.get("Content-Length")
        task = progress.add_task(f"fetching {path.name}", total=int(length) if length else None)
        while chunk := response.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            progress.advance(task, len(chunk))
    return digest.hexdigest()
