"""Manifests of lhotse: JSON lines and shar folders."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar

from lhotse import Features, Recording, SupervisionSegment
from lhotse.cut import Cut, MonoCut, MultiCut
from lhotse.serialization import deserialize_item
from lhotse.utils import compute_num_frames, to_list

from asr.data.manifests.audio import ShardMember, existing_form
from asr.data.manifests.corpus import Dropped, Manifests, RecordingOrFeatures, storage_of
from werdict.console import track
from werdict.errors import raise_if_out_of_resources
from werdict.text_files import as_integer, as_number, as_text, composed, json_objects

ManifestItem: TypeAlias = Recording | Features | SupervisionSegment | Cut
Item = TypeVar("Item", Recording, Features, SupervisionSegment)
# where it stands, a cut, its source, and by how many seconds it may differ if it is repeated, see `add_item`
SourcedCut: TypeAlias = tuple[str, Cut, RecordingOrFeatures | None, float | None]
# of lhotse's other storages memory_raw unpickles, kaldiio runs a program named by the path, and lilcom_url opens an
# address; numpy_files reads with allow_pickle=False
PLACES = (("source", "audio of type", "type", "file"), ("storage_path", "storage", "storage_type", "numpy_files"))
# fields of lhotse's items by the type of their values; null is allowed where lhotse's default is None
TEXTS = ("id", "recording_id", "text", "language", "speaker", "gender")
NULLABLE = ("text", "language", "speaker", "gender")
NUMBERS = ("start", "duration", "frame_shift")
INTEGERS = ("channel", "channels", "channel_ids", "sampling_rate", "num_samples", "num_frames", "num_features")
PLAIN = (str, int, float, bool, type(None))
CUTS = re.compile(r"cuts(?:\.(\w+))?\.jsonl(?:\.gz)?")
FIELDS = ("recording", "features")
TARS = {field: re.compile(rf"{field}(?:\.(\w+))?\.tar") for field in FIELDS}


def read_items(path: Path, kind: type[Item]) -> list[Item]:
    """Read ``recordings*.jsonl(.gz)``, ``supervisions*``, or ``features*``, which replace recordings without audio.

    Raises:
        ValueError: a line is malformed, repeats an id, or names anything but plain local files.
    """
    by_id: dict[str, Item] = {}
    for where, item in items(path, kind.from_dict):
        add_item(by_id, plain_segment(item) if isinstance(item, SupervisionSegment) else item, where)
    return list(by_id.values())


def read_cuts(path: Path, split: str) -> tuple[Manifests, list[Dropped]]:
    """Read ``cuts*.jsonl(.gz)`` as the recordings and supervisions of the cuts.

    Several cuts may hold the same supervision of the same recording; it is read once. lhotse rounds its times in each
    cut to samples, so that they may differ by one.

    Returns:
        Manifests, and the cuts without audio or supervision.

    Raises:
        ValueError: a line is malformed, mixes recordings, or gives another meaning to an id of a line before.
    """

    def cuts() -> Iterator[SourcedCut]:
        for where, cut in items(path, deserialize_item, unused=["features"]):
            if not isinstance(cut, MonoCut | MultiCut):
                raise ValueError(f"{where}: mixed or padded cuts cannot be read; save their audio")
            yield where, cut, cut.recording, 1 / cut.sampling_rate if cut.has_recording else None

    return _manifests(split, "recording", cuts())


def _manifests(split: str, kind: str, cuts: Iterable[SourcedCut]) -> tuple[Manifests, list[Dropped]]:
    """Return the manifests of the cuts of a split, and those without a supervision or a source of some kind."""
    sources: dict[str, Any] = {}
    supervisions: dict[str, SupervisionSegment] = {}
    dropped = []
    for where, cut, source, sample_s in cuts:
        if source is None or not cut.supervisions:
            dropped.append(Dropped(split, cut.id, f"no {'supervision' if source else kind}: the cut has none"))
            continue
        recording_id = add_item(sources, source, where, sample_s)
        for segment in cut.supervisions:
            # which may call the recording otherwise; lhotse reads the channels of the cut, whichever they name
            inside = set(to_list(segment.channel)) <= set(to_list(cut.channel))
            channel = segment.channel if inside else cut.channel
            segment = replace(plain_segment(segment).with_offset(cut.start), recording_id=recording_id, channel=channel)
            add_item(supervisions, segment, where, sample_s)
    return Manifests.of(sources.values(), supervisions.values()), dropped


def items(path: Path, make: Callable[[dict[str, Any]], Any], unused: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the place in a manifest, for messages, and lhotse's object of each line; files are named absolutely.

    Args:
        path: of the manifest.
        make: data of a line → object.
        unused: fields that are left out, and may name anything.

    Raises:
        ValueError: a line is malformed, or names anything but plain local files.
    """
    # cuts of prepared data name files from their own folder, other manifests, as lhotse does, from the current one
    start = path.parent if (path.parent / "prepared.json").is_file() else Path()
    for number, data in track(json_objects(path, as_written=True), f"reading {path.name}", transient=True):
        data = {name: value for name, value in data.items() if name not in unused}
        try:
            check(data, start)
            item = make(data)
        except Exception as error:  # lhotse checks few types, and raises whatever follows
            raise_if_out_of_resources(error, str(path))
            raise ValueError(f"{path}, line {number}: {error}") from error
        yield f"{path}, line {number}", item


def check(data: Any, start: Path) -> None:
    """Make the values of lhotse's fields what their names say, numbers text where text belongs, and paths absolute.

    Impulse responses, in transforms of a recording, are recordings too.

    Args:
        data: of an item.
        start: folder that relative paths start from.

    Raises:
        ValueError: names a field with a value of another type; or lhotse would run a command, open an address or
            unpickle: only plain local files may be named.
    """
    if isinstance(data, list):
        for value in data:
            check(value, start)
    if not isinstance(data, dict):
        return
    for place, part, kind, allowed in PLACES:
        if place in data:
            if data.get(kind) != allowed or not _is_plain(data[place]):
                raise ValueError(
                    f"{part} {data.get(kind)!r} ({str(data[place])[:80]!r}) is refused, because reading it could "
                    f"run code or fetch something; save it to files, and name these ({kind} {allowed!r})"
                )
            # prepared data must not depend on where a command is started
            data[place] = str(existing_form(Path(os.path.abspath(start / data[place]))))
    for name, value in data.items():
        if value is None and name in NULLABLE:
            continue
        if name in TEXTS:
            if value is None:
                raise ValueError(f"{name} is null")
            data[name] = composed(as_text(value, name))
        elif name in NUMBERS:
            data[name] = as_number(value, name)
        elif name in INTEGERS:
            data[name] = [as_integer(v, name) for v in value] if isinstance(value, list) else as_integer(value, name)
        elif name not in ("custom", "alignment"):  # which are not used
            check(value, start)


def _is_plain(path: object) -> bool:
    """Return whether lhotse takes a path for that of a file: it runs what has a bar at an end, or begins with pipe:."""
    return isinstance(path, str) and not path.strip().startswith(("|", "pipe:")) and not path.rstrip().endswith("|")


def plain_segment(segment: SupervisionSegment) -> SupervisionSegment:
    """Return a supervision without what is not used: alignments, and custom fields."""
    # an empty string would count as a speaker
    speaker = (segment.speaker or "").strip() or None
    return replace(segment, speaker=speaker, custom=None, alignment=None)


def add_item(items: dict[str, Item], item: Item, where: str, sample_s: float | None = None) -> str:
    """Add an item by its id, and return the id.

    Args:
        items: items by id.
        item: to add.
        where: it stands, for messages.
        sample_s: by how many seconds the times of an item that is repeated may differ; None: none may be repeated.

    Raises:
        ValueError: another item has this id, or, unless it may repeat, the same.
    """
    name = str(item.recording_id if isinstance(item, Features) else item.id)
    first = items.setdefault(name, item)
    if first is not item and (sample_s is None or not _is_same(first, item, sample_s)):
        raise ValueError(
            f"{where}: the id {name!r} of a {type(item).__name__} was given before; every item needs its own id"
        )
    return name


def _is_same(first: Item, item: Item, sample_s: float) -> bool:
    if isinstance(first, SupervisionSegment) and isinstance(item, SupervisionSegment):
        # rounded: the times are not exact multiples
        near = all(round(abs(a - b) / sample_s) <= 1 for a, b in ((first.start, item.start), (first.end, item.end)))
        return near and replace(item, start=first.start, duration=first.duration) == first
    return first == item


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

    def cuts() -> Iterator[SourcedCut]:
        for shard in track(shards, f"reading shards of {split}", transient=True):
            lines = items(shard.cuts, deserialize_item, unused=FIELDS)
            for (where, cut), (name, source) in zip_longest(lines, _sources(shard), fillvalue=("", None)):
                if cut is None or name != cut.id:
                    raise ValueError(
                        f"{shard.tar} does not match {where or shard.cuts}: the tar has {name!r}; restore both"
                    )
                yield where, cut, source, None

    return _manifests(split, shards[0].field, cuts())


def _sources(shard: Shard) -> Iterator[tuple[str, RecordingOrFeatures | None]]:
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


def to_line(item: ManifestItem) -> str:
    """Return an item as a line of a manifest, with its end, in the format of lhotse's own JSONL writer."""
    return f"{json.dumps(to_plain(item), ensure_ascii=False)}\n"


def to_plain(item: ManifestItem) -> dict[str, Any]:
    """Return what ``item.to_dict()`` returns, in a tenth of the time; the result may share lists with the item.

    lhotse (1.33) copies every value of every item deeply, which takes longer than opening an audio file.
    """
    # lhotse writes the alignments of a cut otherwise than those of a supervision
    if (
        type(item) is MonoCut
        and _is_flat(item.custom)
        and all(supervision.alignment is None for supervision in item.supervisions)
    ):
        plain = _fields(item) | {"supervisions": [to_plain(segment) for segment in item.supervisions]}
        plain |= {name: to_plain(plain[name]) for name in FIELDS if name in plain}
        return {**plain, "type": "MonoCut"}
    if type(item) is Recording and item.transforms is None and all(source.video is None for source in item.sources):
        return _fields(item) | {"sources": [_fields(source) for source in item.sources]}
    if type(item) is SupervisionSegment:
        is_plain = item.alignment is None and _is_flat(item.custom)
    else:
        is_plain = type(item) is Features
    return _fields(item) if is_plain else dict(item.to_dict())


def _fields(item: Any) -> dict[str, Any]:
    # an item's dictionary has the fields of its dataclass in their order
    return {name: value for name, value in vars(item).items() if value is not None}


def _is_flat(custom: dict[str, Any] | None) -> bool:
    return not custom or all(isinstance(value, PLAIN) for value in custom.values())
