"""Finds the folder of a source: as it is, in an archive, or at an address; nothing is written outside of it."""

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
from urllib.parse import urlsplit

from asr.data.preparation.prepared import describe_source, fingerprint
from werdict.console import PlainProgress, bar_title
from werdict.files import naming

CHUNK_BYTES = 2**20
TIMEOUT_S = 30
# raised by tarfile, zipfile and the decompressors where bytes are wrong or missing
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError)


def unpacked(path: Path, work: Path) -> Path:
    """Return a folder as it is, and the folder in ``work`` that an archive is unpacked to.

    Raises:
        ValueError: the path does not exist, or its archive cannot be unpacked, see ``extract``.
    """
    if path.is_dir():
        return path
    return extract(path, work / f"unpacked-{fingerprint(describe_source(str(path)))}")


def fetched(url: str, work: Path, checksum: str | None = None) -> Path:
    """Return the folder in ``work`` that the archive at an address is unpacked to; the archive itself is not kept.

    Raises:
        ValueError: the download failed, the content is another, or the archive cannot be unpacked.
    """
    name = PurePosixPath(urlsplit(url).path).name
    folder = work / f"fetched-{name.partition('.')[0]}"
    if not folder.exists():
        archive = download(url, work / name, checksum)
        try:
            extract(archive, folder)
        finally:
            archive.unlink()  # damaged, it has to be downloaded again
    return folder


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
            if zipfile.is_zipfile(archive) and not tarfile.is_tarfile(archive):
                with zipfile.ZipFile(archive) as zipped:
                    if outside := [name for name in zipped.namelist() if ".." in Path(name).parts]:
                        raise ValueError(f"{archive}: its member {outside[0]!r} would be unpacked elsewhere")
                    zipped.extractall(work)
            else:
                _extract_tar(archive, work)
        work.rename(folder)
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # such as a full disk
            raise
        # of gzip and bz2 wrong bytes are an OSError without a number
        raise ValueError(f"{archive} cannot be unpacked: {error}; if it is damaged, download it again") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _extract_tar(archive: Path, folder: Path) -> None:
    title = bar_title(f"unpacking {archive.name}")
    with (
        PlainProgress(transient=True) as progress,
        progress.open(archive, "rb", description=title) as file,
        tarfile.open(fileobj=file) as tar,
    ):
        tar.extractall(folder, filter="data")
        # a compressed stream checks its checksum at its end, after the last member
        while tar.fileobj and tar.fileobj.read(CHUNK_BYTES):
            pass


def download(url: str, path: Path, checksum: str | None = None) -> Path:
    """Download a file with a progress bar, unless it exists; it appears complete or not at all.

    Args:
        url: of the file.
        path: to write to.
        checksum: SHA-256 of the content, or MD5 where that is published, which finds damage, not intent.

    Raises:
        ValueError: the download failed, or the content is another.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f"{path.name}.partial")
    content = hashlib.new("md5" if checksum and len(checksum) == 32 else "sha256", usedforsecurity=False)
    try:
        _fetch(url, work, content)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise ValueError(f"{url} could not be downloaded ({error}); if you have a copy: data.source=PATH") from error
    if checksum not in (None, content.hexdigest()):
        raise ValueError(f"{url} is not the expected file: its checksum is {content.hexdigest()}, not {checksum}")
    work.rename(path)
    return path


def _fetch(url: str, path: Path, digest: hashlib._Hash) -> None:
    """Write the content of ``url`` to ``path`` and to ``digest``."""
    bar = PlainProgress()
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
