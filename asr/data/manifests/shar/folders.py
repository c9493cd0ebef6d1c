"""Reads lhotse's Shar folders, also of strangers: cuts in jsonl, their audio or features in tars beside them.

Nothing is unpacked: audio is named by its place in the tar. lhotse's own reader (1.33) follows what a manifest in the
tar says, which may be a command.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lhotse import Recording, SupervisionSegment

from asr.console import track
from asr.data.manifests.corpus import Dropped, Manifests, Source
from asr.data.manifests.lhotse_jsonl import (
    MAX_SUPERVISIONS,
    READABLE_CUTS,
    add_item,
    objects,
    parse_recording,
    parse_supervision,
)
from asr.data.manifests.manifest_fields import CUT, CUT_OPTIONAL, check_fields
from asr.data.manifests.shar.features import features_of, refuse_other_features
from asr.data.manifests.shar.tars import TarItem, read_items
from asr.safe_io import check_regular_file

CUTS = re.compile(r"cuts(?:\.(\w+))?\.jsonl(?:\.gz)?")
FIELDS = ("recording", "features")
TARS = {field: re.compile(rf"{field}(?:\.(\w+))?\.tar") for field in FIELDS}
OTHERS = re.compile(r"(\w+)(?:\.\w+)?\.(?:tar|tar\.gz|jsonl\.gz)")  # names of fields, read or not
WORDS = {"recording": "audio", "features": "features"}  # for messages
MAX_SHARD_BYTES = 2**50
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
    cuts, audio, features = (_by_number(names, kind) for kind in (CUTS, *TARS.values()))
    features = {number: path for number, path in features.items() if number.isdecimal() or number in cuts}
    field, tars = ("features", features) if features and not audio else ("recording", audio)
    is_numbered = any(number.isdecimal() for number in cuts)
    if not tars and not (is_numbered and any(name.endswith((".tar", ".tar.gz")) for name in names)):
        return []
    for number in sorted(cuts.keys() ^ tars.keys()):
        here, lacking = (cuts[number], f"{field}…tar") if number in cuts else (tars[number], "cuts….jsonl.gz")
        raise ValueError(
            f"{folder}: the shard {here.name} has no {lacking} beside it: restore it. Of Shar folders, audio in plain "
            "tar files is read, or features"
        )
    counted = sorted(int(number) for number in cuts if number.isdecimal())
    for before, after in itertools.pairwise(counted):
        if after != before + 1:
            raise ValueError(f"{folder}: shard {before + 1} is missing, between {before} and {after}: restore it")
    return [Shard(cuts[number], tars[number], field) for number in sorted(cuts)]


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
        tars = [folder / split / f"{field}.{number}.tar" for field in FIELDS]
        if split and not any(tar.is_file() for tar in tars):
            raise ValueError(f"{folder}: the shard {split}/….{number}.tar is missing: restore it")


def read_shards(shards: list[Shard], split: str) -> tuple[Manifests, list[Dropped], list[str]]:
    """Read shards as the recordings, or features, and the supervisions of their cuts.

    Returns:
        Manifests, the cuts without audio (or features) or supervision, and notes on what is not read.

    Raises:
        ValueError: a line or a member is malformed, the two files of a shard do not fit each other, or one would do
            more than hold audio or features.
    """
    sources: dict[str, Any] = {}
    supervisions: dict[str, SupervisionSegment] = {}
    dropped: list[Dropped] = []
    beside: set[str] = set()
    for shard in track(shards, f"reading shards of {split}", transient=True):
        for where, data, source in _cuts(shard):
            beside.update({"recording"} & data.keys())
            if source is None or not data.get("supervisions"):
                lacking = "supervision" if source else shard.field
                dropped.append(Dropped(split, data["id"], f"no {lacking}: the cut has none"))
                continue
            add_item(sources, source, where, may_repeat=False)
            for supervision in data["supervisions"]:
                segment = parse_supervision(where, supervision).with_offset(data["start"])
                add_item(supervisions, replace(segment, recording_id=data["id"]), where, may_repeat=False)
    return Manifests.of(sources.values(), supervisions.values()), dropped, _notes(shards[0], beside)


def _notes(shard: Shard, fields: set[str]) -> list[str]:
    beside = (OTHERS.fullmatch(path.name) for path in shard.cuts.parent.iterdir())
    others = sorted(({found[1] for found in beside if found} | fields) - {"cuts", shard.field})
    return [f"fields of Shar folders that were ignored: {', '.join(others)}"] if others else []


def _cuts(shard: Shard) -> Iterator[tuple[str, dict[str, Any], Source | None]]:
    """Yield each cut of a shard, and the recording, or features, of it alone; None if it has none."""
    check_regular_file(shard.tar, MAX_SHARD_BYTES)
    what = WORDS[shard.field]
    with shard.tar.open("rb") as file:
        items = read_items(shard.tar, file, what)
        for where, line in objects(shard.cuts):
            data = _checked_cut(where, line, shard.field)
            item = next(items, None)
            if item is None:
                raise ValueError(f"{shard.tar} ends before the {what} of {data['id']!r}: it was cut short; restore it")
            source = _recording(item) if shard.field == "recording" else features_of(item, file)
            if item.name != data["id"]:
                raise ValueError(
                    f"{shard.tar} holds {what} of {item.name[:80]!r} where {shard.cuts.name} has the cut "
                    f"{data['id'][:80]!r}; the two files are of different shards"
                )
            yield where, data, source
        if next(items, None) is not None:
            raise ValueError(f"{shard.tar} has more {what} than {shard.cuts.name} has cuts: restore that file")


def _checked_cut(where: str, line: dict[str, Any], field: str) -> dict[str, Any]:
    if line.get("type") not in READABLE_CUTS:
        raise ValueError(
            f"{where}: a cut of type {str(line.get('type'))[:40]!r} is not read, only {' and '.join(READABLE_CUTS)}"
        )
    data = check_fields(where, line, CUT, CUT_OPTIONAL)
    if field == "recording":
        _refuse_other_audio(where, data.get("recording") or {"sources": []})
    elif line.get("features"):
        refuse_other_features(where, line["features"])
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


def _recording(item: TarItem) -> Recording | None:
    """Return the recording that a tar holds of a cut; None if it holds none."""
    if item.member is None:
        return None
    plain = item.plain_manifest("a recording")
    _refuse_other_audio(item.where, plain)
    if len(plain["sources"]) != 1:
        raise ValueError(
            f"{item.where}: the recording has {len(plain['sources'])} sources; in a Shar folder it has one"
        )
    source = plain["sources"][0] | {"type": "file", "source": str(item.member)}
    # cuts of one recording have audio of their own here
    return replace(parse_recording(item.where, plain | {"sources": [source]}), id=item.name)
