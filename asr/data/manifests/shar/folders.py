"""Reads lhotse's Shar folders: cuts in jsonl, their audio or features in tars beside them.

Nothing is unpacked: audio is named by its place in the tar, so that it is read in any order and a run resumes exactly.
``CutSet.from_shar`` of lhotse (1.33) reads from the first to the last, and holds the audio in memory.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

from lhotse import Features, Recording, SupervisionSegment
from lhotse.serialization import deserialize_item
from lhotse.utils import compute_num_frames

from asr.console import track
from asr.data.manifests.corpus import Dropped, Manifests, Source
from asr.data.manifests.feature_storage import storage_of
from asr.data.manifests.lhotse_jsonl import add_item, items, segments_of
from asr.data.manifests.shar.members import ShardMember
from asr.text_files import composed

CUTS = re.compile(r"cuts(?:\.(\w+))?\.jsonl(?:\.gz)?")
FIELDS = ("recording", "features")
TARS = {field: re.compile(rf"{field}(?:\.(\w+))?\.tar") for field in FIELDS}


@dataclass(frozen=True)
class Shard:
    """A part of a Shar folder.

    Attributes:
        cuts: the manifest.
        tar: audio or features of these cuts, in their order.
        field: ``recording`` or ``features``.
    """

    cuts: Path
    tar: Path
    field: str


def find_shards(folder: Path) -> list[Shard]:
    """Return the shards of a folder in order; none if it is no Shar folder.

    A folder with tars of audio is one of audio; with tars of features alone, one of features. A tar without a number
    may be anybody's archive, and counts only beside the cuts of its name.

    Raises:
        ValueError: cuts lack their tar, or the reverse.
    """
    names = {path.name: path for path in sorted(folder.iterdir())}
    cuts, *tars = (
        {match[1] or "": path for name, path in names.items() if (match := kind.fullmatch(name))}
        for kind in (CUTS, *TARS.values())
    )
    field, shards = next(((field, shards) for field, shards in zip(FIELDS, tars, strict=True) if shards), ("", {}))
    numbers = {number for number in (*cuts, *shards) if number.isdecimal() or number in cuts.keys() & shards.keys()}
    if not numbers or not any(name.endswith((".tar", ".tar.gz")) for name in names):
        return []
    if unpaired := sorted(numbers - (cuts.keys() & shards.keys())):
        file = cuts.get(unpaired[0]) or shards[unpaired[0]]
        raise ValueError(
            f"{folder}: the shard of {file.name} is incomplete; expected cuts.NUMBER.jsonl.gz with "
            "recording.NUMBER.tar, or features.NUMBER.tar, not compressed; restore it"
        )
    return [Shard(cuts[number], shards[number], field) for number in sorted(numbers)]


def read_shards(shards: list[Shard], split: str) -> tuple[Manifests, list[Dropped]]:
    """Read shards as the recordings, or features, and the supervisions of their cuts.

    Returns:
        Manifests, and the cuts without audio (or features) or supervision.

    Raises:
        ValueError: a line or a member is malformed, or the two files of a shard do not fit each other.
    """
    sources: dict[str, Any] = {}
    supervisions: dict[str, SupervisionSegment] = {}
    dropped: list[Dropped] = []
    for shard in track(shards, f"reading shards of {split}", transient=True):
        lines = items(shard.cuts, deserialize_item, unused=FIELDS)
        for (where, cut), (name, source) in zip_longest(lines, _sources(shard), fillvalue=("", None)):
            if cut is None or name != cut.id:
                raise ValueError(
                    f"{shard.tar} does not match {where or shard.cuts}: the tar has {name!r}; restore both"
                )
            if source is None or not cut.supervisions:
                lacking = "supervision" if source else shard.field
                dropped.append(Dropped(split, cut.id, f"no {lacking}: the cut has none"))
                continue
            add_item(sources, source, where)
            for segment in segments_of(cut, cut.id):
                add_item(supervisions, segment, where)
    return Manifests.of(sources.values(), supervisions.values()), dropped


def _sources(shard: Shard) -> Iterator[tuple[str, Source | None]]:
    """Yield the id of each cut that a tar holds something of, and its recording or features; None if it has none.

    A file is followed by its manifest, of which only the numbers are used.
    """
    make = _recording if shard.field == "recording" else _features
    try:
        with shard.tar.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            while (content := tar.next()) is not None and (manifest := tar.next()) is not None:
                path, opened = PurePosixPath(composed(content.name)), tar.extractfile(manifest)
                if path.suffix in (".nodata", ".nometa") or opened is None:
                    yield str(path.with_suffix("")), None
                else:
                    member = ShardMember(str(shard.tar), content.offset_data, content.size)
                    yield str(path.with_suffix("")), make(json.load(opened), path, member)
                # tarfile keeps every header, which a tar of many members would fill the memory with
                tar.members.clear()  # type: ignore[attr-defined]
    except tarfile.TarError as error:
        raise ValueError(f"{shard.tar} was cut short, or is not a plain tar: {error}; restore it") from error


def _recording(data: dict[str, Any], path: PurePosixPath, member: ShardMember) -> Recording:
    source = {"type": "file", "channels": data["sources"][0]["channels"], "source": str(member)}
    data.pop("transforms", None)  # applied to what is in the tar
    # cuts of one recording have audio of their own here
    return Recording.from_dict({**data, "id": str(path.with_suffix("")), "sources": [source]})


def _features(data: dict[str, Any], path: PurePosixPath, member: ShardMember) -> Features:
    if path.suffix != ".npy":
        raise ValueError(
            f"{member.tar}: {str(path)!r} is not a numpy array; write features with numpy: "
            'SharWriter(…, fields={"features": "numpy"})'
        )
    # lhotse (1.33) writes the frames of a whole recording beside the duration of a part, and names no recording
    num_frames = compute_num_frames(data["duration"], data["frame_shift"], data["sampling_rate"])
    name = str(path.with_suffix(""))
    return Features.from_dict(data | storage_of(member) | {"recording_id": name, "num_frames": num_frames})
