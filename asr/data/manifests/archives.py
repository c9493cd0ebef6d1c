"""Downloads and unpacks archives of corpora; nothing is written outside of the folder."""

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
from pathlib import Path

import rich.progress
from rich.progress import Progress

from asr.console import PlainConsole, bar_title, track
from asr.safe_io import naming

CHUNK_BYTES = 2**20
TIMEOUT_S = 30
# raised by tarfile, zipfile and the decompressors where bytes are wrong or missing
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError)


def extract(archive: Path, folder: Path) -> Path:
    """Unpack a tar or zip archive into a folder that appears complete or not at all; return the folder.

    Raises:
        ValueError: the file is no archive or damaged, or a member leads out of the folder.
    """
    if folder.exists():
        return folder
    work = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        with naming(work):
            # a tar that ends with an npz, which is a zip, is taken for one
            is_zip = zipfile.is_zipfile(archive) and not tarfile.is_tarfile(archive)
            (_extract_zip if is_zip else _extract_tar)(archive, work)
        work.rename(folder)
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # such as a full disk
            raise
        # of gzip and bz2 wrong bytes are an OSError without a number
        raise ValueError(f"{archive} cannot be unpacked: {error}; if it is damaged, fetch it again") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _extract_tar(archive: Path, folder: Path) -> None:
    title = bar_title(f"unpacking {archive.name}")
    with (
        rich.progress.open(archive, "rb", description=title, console=PlainConsole(), transient=True) as file,
        tarfile.open(fileobj=file) as tar,
    ):
        tar.extractall(folder, filter="data")
        # a compressed stream checks its checksum at its end, after the last member
        while tar.fileobj and tar.fileobj.read(CHUNK_BYTES):
            pass


def _extract_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as zipped:
        for member in track(zipped.infolist(), f"unpacking {archive.name}", transient=True):
            if not (folder / member.filename).resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{archive}: its member {member.filename!r} leads out of the folder")
            zipped.extract(member, folder)


def download(url: str, path: Path, sha256: str | None = None, md5: str | None = None) -> Path:
    """Download a file with a progress bar, unless it exists; it appears complete or not at all.

    Args:
        url: of the file.
        path: to write to.
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
    bar = Progress(console=PlainConsole())
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response, path.open("wb") as file, bar as progress:
        length = int(response.headers.get("Content-Length") or 0)
        task = progress.add_task(bar_title(f"fetching {path.name.removesuffix('.partial')}"), total=length or None)
        while chunk := response.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            progress.advance(task, len(chunk))
        # urllib takes a lost connection for the end of the file
        if length and file.tell() != length:
            raise OSError(f"the connection ended after {file.tell()} of {length} bytes")
