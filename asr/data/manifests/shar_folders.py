"""Reads lhotse's Shar folders, also of strangers: cuts in jsonl, their audio in tars beside them.

Nothing is unpacked: audio is named by its place in the tar. lhotse's own reader (1.33) follows what a manifest in the
tar says, which may be a command.
"""

from __future__ import annotations

import itertools
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from lhotse import Recording, SupervisionSegment

from asr.console import track
from asr.data.manifests.archives import DAMAGE
from asr.data.manifests.corpus import Dropped, Manifests
from asr.data.manifests.lhotse_jsonl import (
    MAX_SUPERVISIONS,
    READABLE_CUTS,
    add_item,
    objects,
    parse_recording,
    parse_supervision,
)
from asr.data.manifests.manifest_fields import CUT, CUT_OPTIONAL, check_fields
from asr.data.manifests.shard_members import MAX_MEMBER_BYTES, ShardMember
from asr.data.manifests.tar_headers import BoundedHeader
from asr.safe_io import check_regular_file

CUTS = re.compile(r"cuts(?:\.(\w+))?\.jsonl(?:\.gz)?")
AUDIO = re.compile(r"recording(?:\.(\w+))?\.tar")
NOT_READ = re.compile(r"(?!recording\.)(\w+)(?:\.\w+)?\.(?:tar|tar\.gz|jsonl\.gz)")  # other fields of the cuts
MAX_MANIFEST_BYTES = 2**20  # of one recording
MAX_SHARD_BYTES = 2**50
INDEX = "index"  # folder of what this program has written of each shard, <split>.<number>.json
NO_AUDIO = (".nodata", ".nometa")


@dataclass(frozen=True)
class Shard:
    """A part of a Shar folder.

    Attributes:
        cuts: the manifest.
        tar: audio of these cuts, in their order.
    """

    cuts: Path
    tar: Path


def find_shards(folder: Path) -> list[Shard]:
    """Return the shards of a folder in order; none if it is no Shar folder.

    Raises:
        ValueError: one lacks cuts or audio, or one is missing between two others.
    """
    names = {path.name: path for path in sorted(folder.iterdir())}
    cuts, tars = (_by_number(names, kind) for kind in (CUTS, AUDIO))
    is_numbered = any(number.isdecimal() for number in cuts)
    if not tars and not (is_numbered and any(name.endswith((".tar", ".tar.gz")) for name in names)):
        return []
    for number in sorted(cuts.keys() ^ tars.keys()):
        here, lacking = (cuts[number], "recording…tar") if number in cuts else (tars[number], "cuts….jsonl.gz")
        raise ValueError(
            f"{folder}: the shard {here.name} has no {lacking} beside it: restore it. Of Shar folders, audio in plain "
            "tar files is read"
        )
    counted = sorted(int(number) for number in cuts if number.isdecimal())
    for before, after in itertools.pairwise(counted):
        if after != before + 1:
            raise ValueError(f"{folder}: shard {before + 1} is missing, between {before} and {after}: restore it")
    return [Shard(cuts[number], tars[number]) for number in sorted(cuts)]


def _by_number(names: Mapping[str, Path], kind: re.Pattern[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    shards: dict[str | int, str] = {}
    for name, path in names.items():
        if match := kind.fullmatch(name):
            number = str(match[1] or "")
            # 0 and 000000 are one
            first = shards.setdefault(int(number) if number.isdecimal() else number, name)
            if first != name:
                raise ValueError(f"{path.parent}: {first} and {name} are both of one shard; keep one of them")
            found[number] = path
    return found


def refuse_incomplete(folder: Path) -> None:
    """Refuse a folder of shards that this program wrote, if one of them is no longer there.

    Raises:
        ValueError: names the shard.
    """
    for record in sorted((folder / INDEX).glob("*.json")):
        split, _, number = record.stem.rpartition(".")
        tar = folder / split / f"recording.{number}.tar"
        if split and not tar.is_file():
            raise ValueError(f"{folder}: the shard {tar.relative_to(folder)} is missing: restore it")


def read_shards(shards: list[Shard], split: str) -> tuple[Manifests, list[Dropped], list[str]]:
    """Read shards as the recordings and supervisions of their cuts.

    Returns:
        Manifests, the cuts without audio or supervision, and notes on what is not read.

    Raises:
        ValueError: a line or a member is malformed, the two files of a shard do not fit each other, or one would do
            more than hold audio.
    """
    recordings: dict[str, Recording] = {}
    supervisions: dict[str, SupervisionSegment] = {}
    dropped: list[Dropped] = []
    for shard in track(shards, f"reading shards of {split}", transient=True):
        for where, data, recording in _cuts(shard):
            if recording is None or not data.get("supervisions"):
                lacking = "supervision" if recording else "recording"
                dropped.append(Dropped(split, data["id"], f"no {lacking}: the cut has none"))
                continue
            add_item(recordings, recording, where, may_repeat=False)
            for supervision in data["supervisions"]:
                segment = parse_supervision(where, supervision).with_offset(data["start"])
                add_item(supervisions, replace(segment, recording_id=recording.id), where, may_repeat=False)
    return Manifests.of(recordings.values(), supervisions.values()), dropped, _notes(shards)


def _notes(shards: list[Shard]) -> list[str]:
    beside = (NOT_READ.fullmatch(path.name) for path in shards[0].cuts.parent.iterdir())
    others = sorted({found[1] for found in beside if found} - {"cuts"})
    return [f"fields of Shar folders that were ignored: {', '.join(others)}"] if others else []


def _cuts(shard: Shard) -> Iterator[tuple[str, dict[str, Any], Recording | None]]:
    """Yield each cut of a shard, and the recording that is its audio alone; None if it has none."""
    check_regular_file(shard.tar, MAX_SHARD_BYTES)
    with shard.tar.open("rb") as file:
        audio = _audio(shard.tar, file)
        for where, line in objects(shard.cuts):
            data = _checked_cut(where, line)
            found = next(audio, None)
            if found is None:
                raise ValueError(f"{shard.tar} ends before the audio of {data['id']!r}: it was cut short; restore it")
            name, recording = found
            if name != data["id"]:
                raise ValueError(
                    f"{shard.tar} holds audio of {name[:80]!r} where {shard.cuts.name} has the cut "
                    f"{data['id'][:80]!r}; the two files are of different shards"
                )
            # cuts of one recording have audio of their own here
            yield where, data, None if recording is None else replace(recording, id=data["id"])
        if next(audio, None) is not None:
            raise ValueError(f"{shard.tar} has more audio than {shard.cuts.name} has cuts: restore that file")


def _checked_cut(where: str, line: dict[str, Any]) -> dict[str, Any]:
    if line.get("type") not in READABLE_CUTS:
        raise ValueError(
            f"{where}: a cut of type {str(line.get('type'))[:40]!r} is not read, only {' and '.join(READABLE_CUTS)}"
        )
    data = check_fields(where, line, CUT, CUT_OPTIONAL)
    _refuse_other_audio(where, data.get("recording") or {"sources": []})
    if len(data.get("supervisions") or ()) > MAX_SUPERVISIONS:
        raise ValueError(
            f"{where}: the cut has {len(data['supervisions'])} supervisions; at most {MAX_SUPERVISIONS} are read"
        )
    return data


def _refuse_other_audio(where: str, recording: Any) -> None:
    """Refuse a recording that is not audio of the shard: lhotse would run a command, or open an address."""
    sources = recording.get("sources") if isinstance(recording, dict) else None
    for source in sources if isinstance(sources, list) else [sources]:
        kind = source.get("type") if isinstance(source, dict) else None
        if not isinstance(source, dict) or kind != "shar" or source.get("source"):
            raise ValueError(
                f"{where}: audio of type {str(kind)[:40]!r} is refused, because reading it could run a command or "
                "fetch something; in a Shar folder all audio is of type 'shar', without a source"
            )


def _audio(path: Path, file: BinaryIO) -> Iterator[tuple[str, Recording | None]]:
    """Yield the name of each audio in a tar, and its recording; None where a cut has none."""
    members = _members(path, file)
    for content in members:
        manifest = next(members, None)
        if manifest is None:
            raise ValueError(f"{path}: no manifest follows {content.name[:80]!r}: it was cut short; restore it")
        stem, told = (PurePosixPath(member.name) for member in (content, manifest))
        name = str(stem.parent / stem.stem)
        if str(told.parent / told.stem) != name:
            raise ValueError(f"{path}: {str(told)[:80]!r} follows {content.name[:80]!r}, and is not its manifest")
        if stem.suffix in NO_AUDIO:
            yield name, None
            continue
        where = f"{path}, {str(told)[:80]!r}"
        if manifest.size > MAX_MANIFEST_BYTES or not 0 < content.size <= MAX_MEMBER_BYTES:
            raise ValueError(f"{where}: audio of {content.size} bytes with a manifest of {manifest.size} is refused")
        file.seek(manifest.offset_data)
        yield (
            name,
            _recording(where, file.read(manifest.size), ShardMember(str(path), content.offset_data, content.size)),
        )


def _recording(where: str, manifest: bytes, member: ShardMember) -> Recording:
    try:
        told = json.loads(manifest)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: this is no manifest of a recording: {error}") from None
    _refuse_other_audio(where, told)
    if len(told["sources"]) != 1:
        raise ValueError(f"{where}: the recording has {len(told['sources'])} sources; in a Shar folder it has one")
    return parse_recording(where, told | {"sources": [told["sources"][0] | {"type": "file", "source": str(member)}]})


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
