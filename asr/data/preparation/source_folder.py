"""The folder of a source: given as it is, as an archive, or at an address."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from asr.data.manifests.archives import download, extract
from asr.data.preparation.fingerprint import describe_source, fingerprint


def unpacked(path: Path, work: Path) -> Path:
    """Return a folder as it is, and the folder in ``work`` that an archive is unpacked to.

    Raises:
        ValueError: the path does not exist, or its archive cannot be unpacked, see ``extract``.
    """
    if path.is_dir():
        return path
    return extract(path, work / f"unpacked-{fingerprint(describe_source(str(path)))}")


def fetched(url: str, work: Path, sha256: str | None = None, md5: str | None = None) -> Path:
    """Return the folder in ``work`` that the archive at an address is unpacked to; the archive itself is not kept.

    Raises:
        ValueError: the download failed, the content is another, or the archive cannot be unpacked.
    """
    name = PurePosixPath(urlsplit(url).path).name
    folder = work / f"fetched-{name.partition('.')[0]}"
    if not folder.exists():
        archive = download(url, work / name, sha256, md5)
        try:
            extract(archive, folder)
        finally:
            archive.unlink()  # damaged, it has to be downloaded again
    return folder
