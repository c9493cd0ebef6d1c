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
from pathlib import Path, PurePosixPath
from typing import Any

from lhotse import Features, Recording, SupervisionSegment
from lhotse.utils import compute_num_frames

from asr.console import track
from asr.data.manifests.corpus import Dropped, Manifests, Source
from asr.data.manifests.feature_storage import storage_of
from asr.data.manifests.lhotse_jsonl import add_item, items, segments_of
from asr.data.manifests.shar.members import ShardMember

CUTS = re.compile(r"cuts(?:\.(\w+))?\.jsonl(?:\.gz)?")
FIELDS = ("recording", "features")
TARS = {field: re.compile(rf"{field}(?:\.(\w+))?\.tar") for field in FIELDS}
OTHERS = re.compile(r"(\w+)(?:\.\w+)?\.(?:tar|tar\.gz|jsonl\.gz)")  # names of fields, read or not
INDEX = "index"  # folder of what this program has written of each shard, <split>.<number>.json


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

    A folder with tars of audio is one of audio; with tars of features alone, one of features. A ``features.tar``
    without a number may be anybody's archive, and counts only beside the cuts of its name.

    Raises:
        ValueError: one lacks cuts or its tar, or one is missing between two others.
    """
    names = {path.name: path for path in sorted(folder.iterdir())}
    cuts, audio, features = (
        {match[1] or "": path for name, path in names.items() if (match := kind.fullmatch(name))}
        for kind in (CUTS, *TARS.values())
    )
    features = {number: path for number, path in features.items() if number.isdecimal() or number in cuts}
    field, tars = ("features", features) if features and not audio else ("recording", audio)
    numbers = sorted(int(number) for number in cuts if number.isdecimal())
    if not tars and not (numbers and any(name.endswith((".tar", ".tar.gz")) for name in names)):
        return []
    for number in sorted(cuts.keys() ^ tars.keys()):
        here, lacking = (cuts[number], f"{field}…tar") if number in cuts else (tars[number], "cuts….jsonl.gz")
        raise ValueError(f"{folder}: the shard {here.name} has no {lacking} (a plain tar) beside it: restore it")
    if missing := set(range(min(numbers, default=0), max(numbers, default=0))) - {*numbers}:
        raise ValueError(f"{folder}: the shard {min(missing)} is missing, between others: restore it")
    return [Shard(cuts[number], tars[number], field) for number in sorted(cuts)]


def refuse_incomplete(folder: Path) -> None:
    """Refuse a folder of shards that this program wrote, if one of them is no longer there.

    Raises:
        ValueError: names the shard.
    """
    for record in sorted((folder / INDEX).glob("*.json")):
        split, _, number = record.stem.rpartition(".")
        if not any((folder / split / f"{field}.{number}.tar").is_file() for field in FIELDS):
            raise ValueError(f"{folder}: the shard {split}/….{number}.tar is missing: restore it")


def read_shards(shards: list[Shard], split: str) -> tuple[Manifests, list[Dropped], list[str]]:
    """Read shards as the recordings, or features, and the supervisions of their cuts.

    Returns:
        Manifests, the cuts without audio (or features) or supervision, and notes on what is not read.

    Raises:
        ValueError: a line or a member is malformed, or the two files of a shard do not fit each other.
    """
    sources: dict[str, Any] = {}
    supervisions: dict[str, SupervisionSegment] = {}
    dropped: list[Dropped] = []
    for shard in track(shards, f"reading shards of {split}", transient=True):
        found = _sources(shard)
        for where, cut in items(shard.cuts, unused=FIELDS):
            name, source = next(found, (None, None))
            if name != cut.id:
                raise ValueError(f"{shard.tar} does not fit {where}: the cut is {cut.id!r}, in the tar is {name!r}")
            if source is None or not cut.supervisions:
                lacking = "supervision" if source else shard.field
                dropped.append(Dropped(split, cut.id, f"no {lacking}: the cut has none"))
                continue
            add_item(sources, source, where, may_repeat=False)
            for segment in segments_of(cut, cut.id):
                add_item(supervisions, segment, where, may_repeat=False)
        if next(found, None) is not None:
            raise ValueError(f"{shard.tar} has more in it than {shard.cuts.name} has cuts: restore that file")
    beside = (OTHERS.fullmatch(path.name) for path in shards[0].cuts.parent.iterdir())
    others = sorted({match[1] for match in beside if match} - {"cuts", shards[0].field})
    notes = [f"fields of Shar folders that were ignored: {', '.join(others)}"] if others else []
    return Manifests.of(sources.values(), supervisions.values()), dropped, notes


def _sources(shard: Shard) -> Iterator[tuple[str, Source | None]]:
    """Yield the id of each cut that a tar holds something of, and its recording or features; None if it has none.

    A file is followed by its manifest, of which only the numbers are used.
    """
    make = _recording if shard.field == "recording" else _features
    try:
        with shard.tar.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            while (content := tar.next()) is not None and (manifest := tar.next()) is not None:
                path, opened = PurePosixPath(content.name), tar.extractfile(manifest)
                if path.suffix in (".nodata", ".nometa") or opened is None:
                    yield str(path.with_suffix("")), None
                else:
                    member = ShardMember(str(shard.tar), content.offset_data, content.size)
                    yield str(path.with_suffix("")), make(json.load(opened), path, member)
                # tarfile keeps every header, which a tar of many members would fill the memory with
                tar.members.clear()  # type: ignore[attr-defined]
    except tarfile.TarError as error:
        raise ValueError(f"{shard.tar} was cut short, or is no plain tar: {error}; restore it") from error


def _recording(data: dict[str, Any], path: PurePosixPath, member: ShardMember) -> Recording:
    source = {"type": "file", "channels": data["sources"][0]["channels"], "source": str(member)}
    data.pop("transforms", None)  # applied to what is in the tar
    # cuts of one recording have audio of their own here
    return Recording.from_dict({**data, "id": str(path.with_suffix("")), "sources": [source]})


def _features(data: dict[str, Any], path: PurePosixPath, member: ShardMember) -> Features:
    if path.suffix != ".npy":
        raise ValueError(
            f"{member.tar}: {str(path)!r} is no array of numpy; write features with numpy: "
            'SharWriter(…, fields={"features": "numpy"})'
        )
    # lhotse (1.33) writes the frames of a whole recording beside the duration of a part, and names no recording
    num_frames = compute_num_frames(data["duration"], data["frame_shift"], data["sampling_rate"])
    name = str(path.with_suffix(""))
    return Features.from_dict(data | storage_of(member) | {"recording_id": name, "num_frames": num_frames})
