"""Prepared audio or features as tar shards that lhotse reads too (its Shar format), one for each chunk of a split.

<folder>/<split>/cuts.000000.jsonl.gz         cuts without audio or features
<folder>/<split>/recording.000000.tar         audio and a manifest of each, in the same order; features.000000.tar
<folder>/index/<split>.000000.json            where in the tar each cut is, and digests of both files
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lhotse.shar.writers.tar import TarWriter

from asr.data.manifests.audio_checks import reading
from asr.data.manifests.lhotse_jsonl import to_line, to_plain
from asr.data.manifests.shar.members import ShardMember, forget
from asr.data.preparation.checked_chunks import CheckedChunk, CheckedSplit, unreadable
from asr.data.preparation.fingerprint import describe_file, refuse_changed
from asr.data.preparation.indexed_cut_set import parse_cut
from asr.data.preparation.saved_corpus import digest, gzipped
from asr.data.preparation.shard_fields import ShardField, member_name
from asr.safe_io import TEMPORARY, locked_folder, naming, sync, write_whole

BLOCK_BYTES = 512  # of tar
INDEX = "index"  # folder of what is written of each shard, <split>.<number>.json

Files = Mapping[str, Path]


@dataclass(frozen=True)
class ShardStorage:
    """Where shards are written, and how.

    Attributes:
        folder: of all splits, absolute.
        field: what is stored of each cut.
    """

    folder: Path
    field: ShardField

    def files(self, chunk: CheckedChunk) -> dict[str, Path]:
        """Return the cuts, the tar and the index of the shard of a chunk."""
        number = chunk.path.stem.rpartition("-")[2]
        return {
            "cuts": self.folder / chunk.split / f"cuts.{number}.jsonl.gz",
            "tar": self.folder / chunk.split / f"{self.field.name}.{number}.tar",
            "index": self.folder / INDEX / f"{chunk.split}.{number}.json",
        }


def write_shards(splits: Mapping[str, CheckedSplit], storage: ShardStorage, num_jobs: int) -> dict[str, CheckedSplit]:
    """Write the shards of all splits, or find what an earlier call has written, with a line of progress for each.

    Returns:
        The same splits, with cuts that name the places of their audio or features in the shards.

    Raises:
        ValueError: the folder holds something else, or a shard of other data.
    """
    storage.folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(storage.folder, wait=True):
        _refuse_others(storage, splits)
        for folder in (*splits, INDEX):
            (storage.folder / folder).mkdir(exist_ok=True)
        return {name: _write_split(split, storage, num_jobs) for name, split in splits.items()}


def _refuse_others(storage: ShardStorage, splits: Mapping[str, CheckedSplit]) -> None:
    """Refuse a folder with anything in it that these splits do not write: nothing there is overwritten."""
    chunks = [chunk for split in splits.values() for chunk in split.chunks]
    expected = {path for chunk in chunks for path in storage.files(chunk).values()}
    for path in storage.folder.rglob("*"):
        if not path.is_dir() and path.with_name(path.name.removesuffix(TEMPORARY)) not in expected:
            raise ValueError(
                f"data.storage.dir: {storage.folder} holds {str(path.relative_to(storage.folder))!r}, which is not "
                "part of these data; give a new or an empty folder, or that of an interrupted call with the same "
                "options"
            )


def _write_split(split: CheckedSplit, storage: ShardStorage, num_jobs: int) -> CheckedSplit:
    field = storage.field

    def write(chunk: CheckedChunk) -> CheckedChunk:
        files, lines = storage.files(chunk), [line for line, _ in split.lines(chunk)]
        cuts = [parse_cut(line, chunk.path.parent) for line in lines]
        state = chunk.path.parents[1].name.partition("-")[2]  # of audio that has changed, see `current_folder`
        made_of = digest([f"{field.options}{state}\n".encode(), *lines])
        index = _found_index(files, made_of) or _write_shard(files, made_of, cuts, field)
        left_out = dict(index["dropped"])
        readable = [cut for cut in cuts if cut.id not in left_out]
        stored = [
            field.stored(cut, cut.id, (first, second), ShardMember(str(files["tar"]), *place))
            for cut, (first, second, *place) in zip(readable, index["members"], strict=True)
        ]
        dropped = [unreadable(chunk.split, name, why, field.source) for name, why in left_out.items()]
        return CheckedChunk.write(chunk.sibling("sharded"), chunk.split, made_of, stored, dropped, chunk.duration_s)

    return split.rebuilt(write, num_jobs, f"writing shards of {split.name}")


def _found_index(files: Files, made_of: str) -> dict[str, Any] | None:
    """Return the index of a shard that is there and whole; None if the shard, or a file of it, is not there.

    Raises:
        ValueError: another shard has its name, or its files have changed.
    """
    kinds = [kind for kind in ("tar", "cuts") if files[kind].exists()]
    index: dict[str, Any] = json.loads(files["index"].read_bytes()) if files["index"].exists() else {"made_of": None}
    if index["made_of"] == made_of:
        for kind in kinds:
            refuse_changed(files[kind], index[kind], files["index"].name)
        return index if len(kinds) == 2 else None
    if kinds:
        raise ValueError(
            f"data.storage.dir: {files[kinds[0]]} belongs to other data, to audio that has changed since, or to other "
            "options of text or limits; give a new folder, or remove this one if nothing needs it"
        )
    return None


def _write_shard(files: Files, made_of: str, cuts: Collection[Any], field: ShardField) -> dict[str, Any]:
    temporary = {kind: files[kind].with_name(files[kind].name + TEMPORARY) for kind in ("tar", "cuts")}
    try:
        with naming(files["tar"]):
            index = {"made_of": made_of, **_fill(temporary, cuts, field)}
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
    forget()
    return index


def _fill(temporary: Files, cuts: Collection[Any], field: ShardField) -> dict[str, Any]:
    """Write tar and cuts; return where each cut is in the tar, and which cuts are not."""
    members: list[list[int]] = []
    dropped: list[tuple[str, str]] = []
    with (
        temporary["cuts"].open("wb") as packed,
        gzipped(packed) as lines,
        TarWriter(str(temporary["tar"]), shard_size=None) as tar,
    ):
        for cut in cuts:
            try:
                with reading(cut.id):
                    array = field.read(cut)
            except ValueError as error:
                dropped.append((cut.id, str(error)))
                continue
            content, ending, size = field.encode(cut, array)
            name = member_name(cut.id)
            held = field.stored(cut, name, size)
            tar.write(f"{name}{ending}", io.BytesIO(content))
            offset = tar.tarstream.offset - -(-len(content) // BLOCK_BYTES) * BLOCK_BYTES
            manifest = f"{json.dumps(to_plain(getattr(held, field.name)))}\n"
            tar.write(f"{name}.json", io.BytesIO(manifest.encode()), count=False)
            lines.write(to_line(held).encode())
            members.append([*size, offset, len(content), zlib.crc32(content)])
    if not members:
        # lhotse's writer has opened no file
        tarfile.open(temporary["tar"], "w").close()
    return {"members": members, "dropped": dropped}
