"""Reads lhotse's manifests line by line, and writes them; what they name must be plain local files.

lhotse's sets (1.33) keep two items of one id, and its readers run commands, open addresses and unpickle where a
manifest asks for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from lhotse import Features, Recording, SupervisionSegment
from lhotse.cut import Cut, MonoCut, MultiCut
from lhotse.serialization import deserialize_item
from lhotse.utils import to_list

from asr.console import track
from asr.data.manifests.audio_checks import existing_form
from asr.data.manifests.corpus import Dropped, Manifests
from asr.errors import raise_if_out_of_resources
from asr.text_files import as_integer, as_number, as_text, composed, json_objects

ManifestItem: TypeAlias = Recording | Features | SupervisionSegment | Cut
Item = TypeVar("Item", Recording, Features, SupervisionSegment)
# of lhotse's other storages memory_raw unpickles, kaldiio runs a program named by the path, and lilcom_url opens an
# address; numpy_files reads with allow_pickle=False
PLACES = (("source", "audio of type", "type", "file"), ("storage_path", "storage", "storage_type", "numpy_files"))
# fields of lhotse's items by the type of their values; null is allowed where lhotse's default is None
TEXTS = ("id", "recording_id", "text", "language", "speaker", "gender")
NULLABLE = ("text", "language", "speaker", "gender")
NUMBERS = ("start", "duration", "frame_shift")
INTEGERS = ("channel", "channels", "channel_ids", "sampling_rate", "num_samples", "num_frames", "num_features")
PLAIN = (str, int, float, bool, type(None))


def read_items(path: Path, kind: type[Item]) -> list[Item]:
    """Read ``recordings*.jsonl(.gz)``, ``supervisions*``, or ``features*``, which replace recordings without audio.

    Raises:
        ValueError: a line is malformed, repeats an id, or names anything but plain local files.
    """
    by_id: dict[str, Item] = {}

    def make(data: dict[str, Any]) -> Item:
        item = kind.from_dict(data)
        return plain_segment(item) if isinstance(item, SupervisionSegment) else item

    for where, item in items(path, make):
        add_item(by_id, item, where)
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
    recordings: dict[str, Recording] = {}
    supervisions: dict[str, SupervisionSegment] = {}
    dropped = []
    for where, cut in items(path, deserialize_item, unused=["features"]):
        if not isinstance(cut, MonoCut | MultiCut):
            raise ValueError(f"{where}: mixed or padded cuts cannot be read; save their audio")
        if not cut.has_recording or not cut.supervisions:
            lacking = "supervision" if cut.has_recording else "recording"
            dropped.append(Dropped(split, cut.id, f"no {lacking}: the cut has none"))
            continue
        sample_s = 1 / cut.sampling_rate
        add_item(recordings, cut.recording, where, sample_s)
        for segment in segments_of(cut, cut.recording.id):
            add_item(supervisions, segment, where, sample_s)
    return Manifests.of(recordings.values(), supervisions.values()), dropped


def segments_of(cut: MonoCut | MultiCut, recording_id: str) -> Iterator[SupervisionSegment]:
    """Yield the supervisions of a cut, at their time in its recording, which they may call otherwise.

    lhotse reads the channels of the cut, whichever a supervision names.
    """
    for segment in cut.supervisions:
        inside = set(to_list(segment.channel)) <= set(to_list(cut.channel))
        channel = segment.channel if inside else cut.channel
        yield replace(plain_segment(segment).with_offset(cut.start), recording_id=recording_id, channel=channel)


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
            check_types(data)
            refuse_foreign(data, start)
            item = make(data)
        except Exception as error:  # lhotse checks few types, and raises whatever follows
            raise_if_out_of_resources(error, str(path))
            raise ValueError(f"{path}, line {number}: {error}") from error
        yield f"{path}, line {number}", item


def check_types(data: Any) -> None:
    """Make the values of lhotse's fields what their names say: numbers become text where text belongs.

    Raises:
        ValueError: names a field with a value of another type.
    """
    if isinstance(data, list):
        for value in data:
            check_types(value)
    if not isinstance(data, dict):
        return
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
            check_types(value)


def refuse_foreign(data: Any, start: Path = Path()) -> None:
    """Refuse data of a manifest that name anything but plain local files; make their paths absolute.

    Impulse responses, in transforms of a recording, are recordings too.

    Args:
        data: of an item.
        start: folder that relative paths start from.

    Raises:
        ValueError: lhotse would run a command, open an address or unpickle.
    """
    if isinstance(data, dict):
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
            if name != "custom":  # which is not used
                refuse_foreign(value, start)
    elif isinstance(data, list):
        for value in data:
            refuse_foreign(value, start)


def _is_plain(path: object) -> bool:
    """Return whether lhotse takes a path for that of a file: it runs what has a bar at an end, or begins with pipe:."""
    return isinstance(path, str) and not path.strip().startswith(("|", "pipe:")) and not path.rstrip().endswith("|")


def plain_segment(segment: SupervisionSegment) -> SupervisionSegment:
    """Return a supervision without what is not used: alignments, and custom fields."""
    # an empty string would count as a speaker
    speaker = (segment.speaker or "").strip() or None
    return replace(segment, speaker=speaker, custom=None, alignment=None)


def add_item(items: dict[str, Item], item: Item, where: str, sample_s: float | None = None) -> None:
    """Add an item by its id.

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


def _is_same(first: Item, item: Item, sample_s: float) -> bool:
    if isinstance(first, SupervisionSegment) and isinstance(item, SupervisionSegment):
        # rounded: the times are not exact multiples
        near = all(round(abs(a - b) / sample_s) <= 1 for a, b in ((first.start, item.start), (first.end, item.end)))
        return near and replace(item, start=first.start, duration=first.duration) == first
    return first == item


def to_line(item: ManifestItem) -> str:
    """Return an item as a line of a manifest, with its end, in the format of lhotse's own JSONL writer."""
    return f"{json.dumps(to_plain(item), ensure_ascii=False)}\n"


def to_plain(item: ManifestItem) -> dict[str, Any]:
    """Return what ``item.to_dict()`` returns, in a tenth of the time; the result may share lists with the item.

    lhotse (1.33) copies every value of every item deeply, which takes longer than opening an audio file.
    """
    plain: dict[str, Any]
    # lhotse writes the alignments of a cut otherwise than those of a supervision
    if (
        type(item) is MonoCut
        and _is_flat(item.custom)
        and all(supervision.alignment is None for supervision in item.supervisions)
    ):
        plain = _fields(item)
        if item.recording is not None:
            plain["recording"] = to_plain(item.recording)
        if item.features is not None:
            plain["features"] = to_plain(item.features)
        plain["supervisions"] = [to_plain(segment) for segment in item.supervisions]
        return {**plain, "type": "MonoCut"}
    if type(item) is Recording and item.transforms is None and all(source.video is None for source in item.sources):
        return _fields(item) | {"sources": [_fields(source) for source in item.sources]}
    if type(item) is SupervisionSegment and item.alignment is None and _is_flat(item.custom):
        return _fields(item)
    if type(item) is Features:
        return _fields(item)
    plain = item.to_dict()
    return plain


def _fields(item: Any) -> dict[str, Any]:
    # an item's dictionary has the fields of its dataclass in their order
    return {name: value for name, value in vars(item).items() if value is not None}


def _is_flat(custom: dict[str, Any] | None) -> bool:
    return not custom or all(isinstance(value, PLAIN) for value in custom.values())
