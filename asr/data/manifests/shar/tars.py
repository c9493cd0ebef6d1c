"""Reads the tars of Shar folders, also of strangers: pairs of a file and its manifest, of one cut after the other.

Nothing is unpacked: a file is named by its place in the tar.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from asr.data.manifests.archives import DAMAGE
from asr.data.manifests.shar.members import MAX_MEMBER_BYTES, ShardMember
from asr.data.manifests.tar_headers import BoundedHeader

MAX_MANIFEST_BYTES = 2**20  # of one recording
EMPTY = (".nodata", ".nometa")  # endings of the names where a cut has nothing in this tar


@dataclass(frozen=True)
class TarItem:
    """What a tar holds of a cut.

    Attributes:
        name: of the cut.
        where: this is, for messages.
        suffix: of the file, with its dot.
        member: the file; None if the cut has none.
        manifest: of the file, as it was written.
    """

    name: str
    where: str
    suffix: str
    member: ShardMember | None
    manifest: bytes

    def plain_manifest(self, what: str) -> Any:
        """Return the manifest as plain data.

        Raises:
            ValueError: it is no JSON.
        """
        try:
            return json.loads(self.manifest)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.where}: this is no manifest of {what}: {error}") from None


def read_items(path: Path, file: BinaryIO, what: str) -> Iterator[TarItem]:
    """Yield the items of an uncompressed tar in order; no file in it is read, only the manifests.

    Args:
        path: of the tar.
        file: the same, open.
        what: it holds, for messages.

    Raises:
        ValueError: it is damaged, or a member is more or less than a file with a manifest after it.
    """
    members = _members(path, file)
    for content in members:
        manifest = next(members, None)
        if manifest is None:
            raise ValueError(f"{path}: no manifest follows {content.name[:80]!r}: it was cut short; restore it")
        stem, second = (PurePosixPath(member.name) for member in (content, manifest))
        name = str(stem.parent / stem.stem)
        if str(second.parent / second.stem) != name:
            raise ValueError(f"{path}: {str(second)[:80]!r} follows {content.name[:80]!r}, and is not its manifest")
        where = f"{path}, {str(second)[:80]!r}"
        if stem.suffix in EMPTY:
            yield TarItem(name, where, stem.suffix, None, b"")
            continue
        if manifest.size > MAX_MANIFEST_BYTES or not 0 < content.size <= MAX_MEMBER_BYTES:
            raise ValueError(f"{where}: {what} of {content.size} bytes with a manifest of {manifest.size} is refused")
        file.seek(manifest.offset_data)
        place = ShardMember(str(path), content.offset_data, content.size)
        yield TarItem(name, where, stem.suffix, place, file.read(manifest.size))


def _members(path: Path, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an uncompressed tar, whose headers are checked while they are read."""
    size = path.stat().st_size
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=BoundedHeader) as tar:
            while (member := tar.next()) is not None:
                _refuse_member(path, member, size)
                yield member
                # tarfile keeps every header, which a tar of many members would fill the memory with
                tar.members.clear()  # type: ignore[attr-defined]
    except DAMAGE as error:
        raise ValueError(
            f"{path} is damaged, cut short, or no uncompressed tar: {str(error) or type(error).__name__}; restore it"
        ) from error
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path} is refused: {error}") from error


def _refuse_member(path: Path, member: tarfile.TarInfo, size: int) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\0" in member.name:
        raise ValueError(f"{path} is refused: its member {member.name[:80]!r} leads out of the folder")
    if not member.isreg():
        raise ValueError(f"{path} is refused: its member {member.name[:80]!r} is a link, a folder or a device")
    if member.offset_data + member.size > size:
        raise ValueError(
            f"{path} has {size} bytes, and its member {member.name[:80]!r} claims {member.size} from byte "
            f"{member.offset_data}: it was cut short; restore it"
        )
