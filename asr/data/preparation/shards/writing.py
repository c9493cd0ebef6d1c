"""Prepared audio or features as tar shards that lhotse reads too (its Shar format), one for each part of a split.

<folder>/<split>/cuts.000000.jsonl.gz         cuts without audio or features
<folder>/<split>/recording.000000.tar         audio and a manifest of each, in the same order; features.000000.tar
<folder>/index/<split>.000000.json            where in the tar each cut is, and digests of both files
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.data.features import cause
from asr.data.jobs import run_jobs
from asr.data.manifests.plain_items import to_line, to_plain
from asr.data.manifests.shar.folders import INDEX
from asr.data.manifests.shar.members import ShardMember, forget
from asr.data.preparation.file_digests import describe_file
from asr.data.preparation.parts import Part, SplitParts, cut_of, unreadable
from asr.data.preparation.progress import track_hours
from asr.data.preparation.saved_corpus import gzipped
from asr.data.preparation.shards.fields import ShardField, member_name
from asr.data.preparation.shards.index import found_index, own_index
from asr.errors import raise_if_out_of_resources
from asr.safe_io import TEMPORARY, locked_folder, naming, refuse_links_outside, sync, write_whole

LAYOUT = 1
BLOCK_BYTES = 512  # of tar


@dataclass(frozen=True)
class ShardStorage:
    """Where shards are written, and how.

    Attributes:
        folder: of all splits, absolute.
        field: what is stored of each cut.
    """

    folder: Path
    field: ShardField

    def files(self, split: str, number: int) -> dict[str, Path]:
        """Return the cuts, the tar and the index of a shard."""
        return {
            "cuts": self.folder / split / f"cuts.{number:06d}.jsonl.gz",
            "tar": self.folder / split / f"{self.field.name}.{number:06d}.tar",
            "index": self.folder / INDEX / f"{split}.{number:06d}.json",
        }


def write_shards(splits: Mapping[str, SplitParts], storage: ShardStorage, num_jobs: int) -> dict[str, SplitParts]:
    """Write the shards of all splits, or find what an earlier call has written, with a line of progress for each.

    Returns:
        The same splits, with cuts that name the places of their audio or features in the shards.

    Raises:
        ValueError: the folder holds something else, or a shard of other data.
    """
    if os.path.lexists(storage.folder) and not storage.folder.is_dir():
        raise ValueError(f"data.storage.dir: {storage.folder} is not a folder; give a new or an empty one")
    storage.folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(storage.folder, wait=True):
        _refuse_others(storage, splits)
        for split in splits.values():
            for part in split.parts:
                WriteShard(split, storage).refuse_foreign(part)  # before anything is written beside it
        for folder in (*splits, INDEX):
            (storage.folder / folder).mkdir(exist_ok=True)
        return {name: _write_split(split, storage, num_jobs) for name, split in splits.items()}


def _write_split(split: SplitParts, storage: ShardStorage, num_jobs: int) -> SplitParts:
    done = run_jobs(WriteShard(split, storage), split.parts, min(num_jobs, len(split.parts)))
    total_s = sum(part.duration_s for part in split.parts)
    parts = list(track_hours(done, total_s, f"writing shards of {split.name}"))
    return SplitParts(split.name, parts, split.dropped)


def _refuse_others(storage: ShardStorage, splits: Mapping[str, SplitParts]) -> None:
    """Refuse a folder with anything in it that these splits do not write: nothing there is overwritten."""
    refuse_links_outside(storage.folder)
    own = {path for name, split in splits.items() for part in split.parts for path in _files(storage, part).values()}
    folders = {storage.folder / name for name in (*splits, INDEX)}
    for parent, below, names in os.walk(storage.folder):
        for path in (Path(parent, name) for name in (*below, *names)):
            if path not in folders and path.with_name(path.name.removesuffix(TEMPORARY)) not in own:
                raise ValueError(
                    f"data.storage.dir: {storage.folder} holds {str(path.relative_to(storage.folder))!r}, which these "
                    "data do not; give a new or an empty folder, or that of an interrupted call with the same options"
                )


def _files(storage: ShardStorage, part: Part) -> dict[str, Path]:
    return storage.files(part.split, int(part.path.stem.rpartition("-")[2]))


@dataclass(frozen=True)
class WriteShard:
    """Writes the shard of a part, or finds that an earlier call has.

    Attributes:
        split: that the part is of.
        storage: where to, and how.
    """

    split: SplitParts
    storage: ShardStorage

    def refuse_foreign(self, part: Part) -> None:
        """Refuse files of other data in the place of the shard, without reading audio or features.

        Raises:
            ValueError: there are such.
        """
        files = _files(self.storage, part)
        if any(map(os.path.lexists, files.values())):
            own_index(files, self._made_of(self._lines(part)))

    def _lines(self, part: Part) -> list[bytes]:
        return [line for line, _ in self.split.lines_of(part)]

    def _made_of(self, lines: Iterable[bytes]) -> str:
        return hashlib.sha256(b"".join([f"{LAYOUT} {self.storage.field.options}\n".encode(), *lines])).hexdigest()

    def __call__(self, part: Part) -> Part:
        """Return the part with audio or features in the shard."""
        field, files, lines = self.storage.field, _files(self.storage, part), self._lines(part)
        made_of = self._made_of(lines)
        index = found_index(files, made_of) or self._write(files, made_of, lines)
        left_out = dict(index["dropped"])
        kept = [cut for line in lines if (cut := cut_of(line, str(part.path))).id not in left_out]
        stored = [
            field.in_shard(cut, (first, second), ShardMember(str(files["tar"]), *place))
            for cut, (first, second, *place) in zip(kept, index["members"], strict=True)
        ]
        dropped = [unreadable(part.split, name, why, field.source) for name, why in left_out.items()]
        path = part.path.with_name(part.path.name.replace("checked-", "sharded-", 1))
        return Part.write(path, part.split, made_of, stored, dropped, part.duration_s)

    def _write(self, files: Mapping[str, Path], made_of: str, lines: Collection[bytes]) -> dict[str, Any]:
        temporary = {kind: files[kind].with_name(files[kind].name + TEMPORARY) for kind in ("tar", "cuts")}
        try:
            index = {"made_of": made_of, **self._fill(temporary, files["tar"], lines)}
            for kind, path in temporary.items():
                sync(path)
                index[kind] = describe_file(path)
            # the index first: a file without one is nobody's, and not overwritten
            write_whole(files["index"], json.dumps(index))
            for kind, path in temporary.items():
                os.replace(path, files[kind])
        finally:
            # after a full disk the next attempt needs the room
            for path in temporary.values():
                path.unlink(missing_ok=True)
        forget(str(files["tar"]))
        return index

    def _fill(self, temporary: Mapping[str, Path], place: Path, lines: Collection[bytes]) -> dict[str, Any]:
        """Write tar and cuts; return where each cut is in the tar, and which cuts are not."""
        members: list[list[int]] = []
        dropped: list[tuple[str, str]] = []
        field = self.storage.field
        with (
            naming(place),
            temporary["tar"].open("wb") as file,
            temporary["cuts"].open("wb") as packed,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
            gzipped(packed) as cuts,
        ):
            for line in lines:
                cut = cut_of(line, str(place))
                field.refuse_unfit(cut)
                try:
                    encoded = field.encode(cut)
                except Exception as error:  # a decoder may raise anything on a broken file
                    raise_if_out_of_resources(error, cut.id)
                    dropped.append((cut.id, cause(error)))
                    continue
                name, content = member_name(cut.id), encoded.content
                held = field.placeholder(cut, name, encoded.size)
                offset = _add(tar, name + encoded.ending, content)
                _add(tar, f"{name}.json", f"{json.dumps(to_plain(getattr(held, field.name)))}\n".encode())
                cuts.write(to_line(held).encode())
                members.append([*encoded.size, offset, len(content), zlib.crc32(content)])
        return {"members": members, "dropped": dropped}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> int:
    """Add a file to a tar, and return the offset of its content."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
    # tarfile keeps every header
    tar.members.clear()  # type: ignore[attr-defined]
    return int(tar.offset) - -(-len(content) // BLOCK_BYTES) * BLOCK_BYTES
